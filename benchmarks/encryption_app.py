"""Posts, with an encrypted field in `BENCH_ENTRIES=encrypted` and without; for `encryption.py`."""

from __future__ import annotations

import os
from typing import Any

from maniflex import Model, Server, field
from maniflex.encryption import MemoryKeyProvider

options: dict[str, Any] = {"encrypted": True} if os.environ["BENCH_ENTRIES"] == "encrypted" else {}


class Post(Model, table=f"posts_{os.environ['BENCH_ENTRIES']}"):
    title: str
    body: str
    status: str = field(default="draft", filterable=True, index=True)
    views: int = field(default=0)
    ssn: str = field(default="900-11-2233", **options)


cache = int(os.environ.get("ENCRYPTION_CACHE", "4096"))
server = Server(os.environ["BENCH_DATABASE"], health_check_db=True, encryption_cache=cache)
server.register(Post)
server.set_key_provider(MemoryKeyProvider({"default": bytes(range(32))}))
