"""Answers of the application's own making: what an action returns, or a middleware puts in place of rows.

A small one is written at once. A large one is written in pieces, with a turn for other requests between
them, and no further than an answer may be large; so an iterator that never ends is not collected for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from contextlib import aclosing, nullcontext
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import BaseModel

from maniflex.errors import OwnAnswerTooLarge
from maniflex.pipeline.response import Encode, Response
from maniflex.pipeline.serializer import encoder
from maniflex.pipeline.threads import LARGE

if TYPE_CHECKING:
    from maniflex.pipeline.runtime import Runtime

Simplify = Callable[[Any], Any]
_SCALARS = frozenset({int, float, bool, type(None), Decimal, UUID, datetime, date, time, timedelta})
_TEXTS = (str, bytes, bytearray)
_LISTS = (list, tuple, set, frozenset)


async def write_answer(response: Response, runtime: Runtime, simplify: Simplify | None = None) -> bytes:
    """The bytes of an envelope; `OwnAnswerTooLarge` when they are more than an answer may have.

    `simplify` writes what JSON has no word for, where the server's own way will not do.
    """
    data = response._data
    encode = runtime.encode if simplify is None else encoder(simplify)
    if response.error is not None or response.status in (204, 304) or _is_small(data):
        return response.encode(encode)
    most, size = runtime.config.limits.answer_size, 0
    pieces = [b'{"data":']
    writing = AnswerWriter(encode, simplify or runtime.simplify).pieces(data)
    while (piece := _next_piece(writing)) is not None:
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise too_large(most)
        if len(piece) > LARGE // 4:
            await asyncio.sleep(0)
    if response._meta is not None:
        pieces.append(b',"meta":' + encode(response._meta))
    pieces.append(b"}")
    return b"".join(pieces)


def _next_piece(pieces: Iterator[bytes]) -> bytes | None:
    try:
        return next(pieces, None)
    except GeneratorExit as error:  # of the application's iterator: nothing is awaited here
        raise RuntimeError("GeneratorExit was raised") from error


def too_large(most: int) -> OwnAnswerTooLarge:
    return OwnAnswerTooLarge(
        f"the answer is larger than {most} bytes (Limits.answer_size); return fewer, or stream it: "
        "Response(200, stream=…)"
    )


async def collect(items: AsyncIterable[Any], most: int) -> list[Any]:
    """The items as a list; `OwnAnswerTooLarge` as soon as they are more than an answer may have."""
    all_items: list[Any] = []
    size = 0
    async with aclosing(items) if hasattr(items, "aclose") else nullcontext():  # type: ignore[type-var]  # it is asked
        async for item in items:
            all_items.append(item)
            size += weigh(item, most - size, unknown=1)
            if size > most:
                raise too_large(most)
    return all_items


def _is_small(value: Any) -> bool:
    return weigh(value, LARGE // 4, unknown=LARGE) <= LARGE // 4


def weigh(value: Any, enough: int, *, unknown: int) -> int:
    """At least how many bytes the value has as JSON, counted until they are more than `enough`.

    What can only be known by using it up, such as an iterator, counts as `unknown`.
    """
    size = 0
    items = [value]
    for item in items:  # it grows while it is walked
        kind = type(item)
        if kind is str:
            size += len(item)
            if size > enough:
                return size
        elif kind not in _SCALARS:
            size += _take_apart(item, kind, items, unknown)
            if size > enough or len(items) > enough:
                return size + len(items)
    return size + len(items)


def _take_apart(item: Any, kind: type, items: list[Any], unknown: int) -> int:
    """Append the parts of an item of any type; returns the bytes it has besides."""
    if kind is dict or isinstance(item, Mapping):
        items += item.values()
        return len(item)
    if isinstance(item, _LISTS):
        items += item
        return 0
    if isinstance(item, _TEXTS):
        return len(item)
    if isinstance(item, Iterator | AsyncIterable) or not hasattr(item, "__dict__"):
        return unknown
    if not isinstance(item, type):
        items += item.__dict__.values()
    return 0


class AnswerWriter:
    """Writes a value as JSON, a piece at a time."""

    def __init__(self, encode: Encode, simplify: Simplify) -> None:
        self._encode = encode
        self._simplify = simplify

    def pieces(self, value: Any) -> Iterator[bytes]:
        if _is_small(value):
            yield self._encode(value)
        elif type(value) is str:
            yield b'"'
            for start in range(0, len(value), LARGE):
                yield self._encode(value[start : start + LARGE])[1:-1]
            yield b'"'
        elif isinstance(value, Mapping):
            yield from self._mapping(value)
        elif isinstance(value, BaseModel):
            simple = self._simplify(value)
            yield from self.pieces(simple) if type(simple) is dict else (self._encode(simple),)
        elif isinstance(value, bytes | bytearray | memoryview) or not _has_items(value):
            yield self._encode(value)
        else:
            yield from self._list(value if isinstance(value, Iterator) else list(value))

    def _mapping(self, value: Mapping[Any, Any]) -> Iterator[bytes]:
        start = b"{"
        # A copy: between two pieces, other requests may change what they share with this one.
        for key, part in list(value.items()):
            yield start + self._encode({key: None})[1:-5]  # without {, null and }
            yield from self.pieces(part)
            start = b","
        yield b"{}" if start == b"{" else b"}"

    def _list(self, items: Iterable[Any]) -> Iterator[bytes]:
        start = b"["
        batch: list[Any] = []
        size = 0
        for item in items:
            weight = weigh(item, LARGE // 4, unknown=LARGE)
            if weight <= LARGE // 4:
                batch.append(item)
                size += weight
            if batch and (size > LARGE // 4 or weight > LARGE // 4):
                yield start + self._encode(batch)[1:-1]
                start, batch, size = b",", [], 0
            if weight > LARGE // 4:
                yield start
                yield from self.pieces(item)
                start = b","
        if batch:
            yield start + self._encode(batch)[1:-1]
            start = b","
        yield b"[]" if start == b"[" else b"]"


def _has_items(value: Any) -> bool:
    return isinstance(value, Set | Sequence | Iterator | ValuesView) and not isinstance(value, str)
