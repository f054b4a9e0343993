"""An application in a process of its own whose creates wait in the middle until a test lets them go on."""

from __future__ import annotations

import os
from pathlib import Path

APP = """
import asyncio, os
from datetime import timedelta
from pathlib import Path
from maniflex import Server
from maniflex.middleware import idempotency
from tests.catalogue.idempotency.shop import Order

seconds = float(os.environ.get("SHUTDOWN", 30))
server = Server(
    {url!r}, path_prefix="", access_log=False, background=False, shutdown_timeout=timedelta(seconds=seconds)
)
server.register(Order)
keys = idempotency.keys(lease=float(os.environ.get("LEASE", 1)), wait=10)
server.pipeline.deserialize.register(keys, at="after")

async def pause(ctx, next):
    if os.environ.get("PAUSES"):
        Path("reached").touch()
        await asyncio.to_thread(Path("go_on").read_bytes)  # a pipe: until the test writes to it
    await next()

step, at = os.environ.get("PAUSES", "validate before").split()
getattr(server.pipeline, step).register(pause, operations=["create"], at=at)
"""
# The claim is committed and the transaction not begun, or the row is written and not committed.
BEFORE_WRITE, AFTER_WRITE = "validate before", "db after"


def write_app(folder: Path, url: str) -> None:
    (folder / "app.py").write_text(APP.format(url=url))
    os.mkfifo(folder / "go_on")


def go_on(folder: Path) -> None:
    """Let the waiting request go on."""
    with (folder / "go_on").open("wb"):
        pass
