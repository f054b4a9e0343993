"""The application that the benchmark of files measures: the routes of single files, on a directory."""

from __future__ import annotations

import os

from maniflex import Server

server = Server(
    f"sqlite:///{os.environ['BENCH_FILES']}/bench.db",
    storage=f"file:{os.environ['BENCH_FILES']}/files",
    max_upload_size=4 * 1024**3,
    access_log=False,
    background=False,
    log_level="ERROR",
)
