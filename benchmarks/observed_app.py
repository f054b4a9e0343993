"""The application of `http_app` under our own server, observed as BENCH_OBSERVED says."""

from __future__ import annotations

import os
import sys
from typing import Any

from http_app import Post, database

from maniflex import Server

QUIET: dict[str, Any] = {"access_log": False, "slow_after": 0}
OBSERVED: dict[str, dict[str, Any]] = {
    "nothing": QUIET,
    "slow": {**QUIET, "slow_after": 1},
    "log": {**QUIET, "access_log": True},
    "json": {**QUIET, "access_log": True, "log_json": True},
    "metrics": {**QUIET, "metrics_enabled": True},
    "all": {"access_log": True, "metrics_enabled": True},
    "defaults": {},
}

if __name__ == "__main__":
    settings = OBSERVED[os.environ["BENCH_OBSERVED"]]
    server = Server(database=database(), auto_migrate=False, port=int(sys.argv[1]), **settings)
    server.register(Post)
    server.run()
