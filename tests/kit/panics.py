"""Whatever a handler or hook may raise that is no `Exception`."""

from __future__ import annotations

import asyncio


class Panic(BaseException):
    """What an extension module raises when its own code panics."""


class Speechless(Exception):
    """Its text cannot be had: to ask for it is another panic."""

    def __init__(self, panic: BaseException) -> None:
        self.panic = panic

    def __str__(self) -> str:
        raise self.panic


def panics() -> list[BaseException]:
    return [
        SystemExit(3),
        KeyboardInterrupt("in a handler"),
        Panic("index out of bounds"),
        BaseExceptionGroup("two at once", [Panic("one"), ValueError("two")]),
        GeneratorExit("closed"),
        asyncio.CancelledError("something inside was"),
    ]


NAMES = [type(panic).__name__ for panic in panics()]
