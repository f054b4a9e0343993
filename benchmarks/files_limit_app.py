"""The least a Python server can do to take a form with a file and to send it again: raw ASGI, by hand.

The form is parsed while it arrives, and the file is hashed and written to a directory in threads;
downloads read it in threads. No limits, no deadlines, no rows, no ranges.
"""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from hashlib import sha256
from pathlib import Path
from typing import Any

from python_multipart.multipart import MultipartParser

DIRECTORY = Path(os.environ["BENCH_FILES"])
READ_AT_ONCE = 256 * 1024
WRITE_AT_ONCE = 1024 * 1024


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    if scope["method"] == "POST":
        await upload(scope, receive, send)
    else:
        await download(scope, send)


async def upload(scope: Any, receive: Any, send: Any) -> None:
    content_type = dict(scope["headers"])[b"content-type"]
    found = re.search(rb"boundary=(\S+)", content_type)
    assert found is not None
    pieces: list[bytes] = []
    parser = MultipartParser(
        found[1], {"on_part_data": lambda data, start, end: pieces.append(data[start:end])}
    )
    digest, waiting, more = sha256(), 0, True
    name = uuid.uuid4().hex
    handle = os.open(DIRECTORY / f"{name}.part", os.O_CREAT | os.O_WRONLY)
    while more:
        message = await receive()
        more = message.get("more_body", False)
        before = len(pieces)
        parser.write(message["body"])
        for piece in pieces[before:]:
            digest.update(piece)
            waiting += len(piece)
        if waiting >= WRITE_AT_ONCE or not more:
            batch, pieces[:], waiting = list(pieces), [], 0
            await asyncio.to_thread(os.writev, handle, batch)
    await asyncio.to_thread(os.fsync, handle)
    os.close(handle)
    os.rename(DIRECTORY / f"{name}.part", DIRECTORY / name)
    await answer(send, b'{"data":{"key":"%b"}}' % name.encode())


async def download(scope: Any, send: Any) -> None:
    path = DIRECTORY / scope["path"].rpartition("/")[2]
    if not path.is_file():
        await answer(send, b"{}")
        return
    handle = os.open(path, os.O_RDONLY)
    headers = [(b"content-length", b"%d" % path.stat().st_size)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while chunk := await asyncio.to_thread(os.read, handle, READ_AT_ONCE):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    os.close(handle)
    await send({"type": "http.response.body", "body": b""})


async def answer(send: Any, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
