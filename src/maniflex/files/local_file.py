"""The bytes of a file of this machine, read beside the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

AT_ONCE = 256 * 1024


async def read_file(path: str | os.PathLike[str]) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(open, path, "rb")
    try:
        while chunk := await asyncio.to_thread(file.read, AT_ONCE):
            yield chunk
    finally:
        file.close()
