"""Which bytes of a file a request asks for, and whether it has them already (RFC 9110)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime

from maniflex.errors import RangeNotSatisfiable

Header = Callable[[str], str | None]
_RANGE = re.compile(r"bytes=\s*([0-9]{0,18})-([0-9]{0,18})\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes from `start` on, `length` of them, of a file with `size`."""

    start: int
    length: int
    size: int

    @property
    def header(self) -> str:
        return f"bytes {self.start}-{self.start + self.length - 1}/{self.size}"


def asked_span(header: Header, size: int, etag: str, modified: datetime | None) -> Span | None:
    """The part that is asked for; None for all of it. Several ranges and other units mean all of it."""
    text = header("range")
    if text is None or not _still_holds(header("if-range"), etag, modified):
        return None
    match = _RANGE.fullmatch(text.strip())
    if match is None or match[0].endswith("=-"):
        return None
    first, last = match[1], match[2]
    if not first and not last:
        return None
    if not first:
        length = min(int(last), size)
        if length == 0:
            raise _unsatisfiable(size)
        return Span(size - length, length, size)
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= size:
        raise _unsatisfiable(size)
    end = min(int(last), size - 1) if last else size - 1
    return Span(start, end - start + 1, size)


def is_unchanged(header: Header, etag: str, modified: datetime | None) -> bool:
    """Whether the client has the file as it is, so that 304 says all."""
    tags = header("if-none-match")
    if tags is not None:
        return tags.strip() == "*" or etag in [_strong(tag) for tag in tags.split(",")]
    since = _moment(header("if-modified-since"))
    return since is not None and modified is not None and modified.replace(microsecond=0) <= since


def http_date(moment: datetime) -> str:
    return format_datetime(moment.astimezone(UTC), usegmt=True)


def _still_holds(condition: str | None, etag: str, modified: datetime | None) -> bool:
    """Whether `If-Range` names the file as it is; a weak tag never does."""
    if condition is None:
        return True
    condition = condition.strip()
    if condition.startswith(('"', "W/")):
        return condition == etag
    since = _moment(condition)
    return since is not None and modified is not None and modified.replace(microsecond=0) == since


def _strong(tag: str) -> str:
    return tag.strip().removeprefix("W/")


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _unsatisfiable(size: int) -> RangeNotSatisfiable:
    return RangeNotSatisfiable(headers={"content-range": f"bytes */{size}"})
