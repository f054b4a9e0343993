"""Rows → lines of JSON, each as the API would answer with it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from maniflex.features.tabular import Batches
from maniflex.pipeline.serializer import Serializer


async def write_jsonl(
    serializer: Serializer, batches: Batches, encode: Callable[[Any], bytes]
) -> AsyncGenerator[bytes, None]:
    """One object a line, in UTF-8."""
    async with aclosing(batches):
        async for rows in batches:
            yield b"".join(encode(serializer.struct_of(row)) + b"\n" for row in rows)
