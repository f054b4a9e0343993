"""Ranges and conditions of downloads."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from maniflex.errors import RangeNotSatisfiable
from maniflex.features.files.downloads import asked_span, disposition, is_unchanged

TAG = '"abc"'
CHANGED = datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)
DATE, EARLIER = "Sat, 31 Jan 2026 12:00:00 GMT", "Sat, 31 Jan 2026 11:59:59 GMT"


def span(text: str | None, size: int = 100, if_range: str | None = None) -> tuple[int, int] | None:
    headers = {"range": text, "if-range": if_range}
    found = asked_span(headers.get, size, TAG, CHANGED)
    return None if found is None else (found.start, found.length)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("bytes=0-9", (0, 10)),
        ("bytes=90-", (90, 10)),
        ("bytes=-5", (95, 5)),
        ("bytes=-500", (0, 100)),
        ("bytes=50-999", (50, 50)),
        ("BYTES=0-0", (0, 1)),
        ("bytes=9-0", None),
        ("bytes=-", None),
        ("bytes=0-1,3-4", None),
        ("items=0-1", None),
        ("bytes=a-b", None),
        ("bytes 0-1", None),
    ],
)
def test_one_range_is_a_part_and_anything_else_the_whole(
    text: str | None, expected: tuple[int, int] | None
) -> None:
    assert span(text) == expected


@pytest.mark.parametrize(
    ("text", "size"), [("bytes=100-", 100), ("bytes=999999-", 100), ("bytes=0-0", 0), ("bytes=-0", 5)]
)
def test_a_range_behind_the_end_is_refused(text: str, size: int) -> None:
    with pytest.raises(RangeNotSatisfiable) as refused:
        span(text, size)
    assert refused.value.headers == {"content-range": f"bytes */{size}"}


@pytest.mark.parametrize(
    ("condition", "is_part"),
    [
        (TAG, True),
        ('"other"', False),
        (f"W/{TAG}", False),
        (DATE, True),
        (EARLIER, False),
        ("nonsense", False),
    ],
)
def test_if_range_holds_for_the_same_file_alone(condition: str, is_part: bool) -> None:
    assert (span("bytes=0-9", if_range=condition) is not None) is is_part


@pytest.mark.parametrize(
    ("tags", "since", "unchanged"),
    [
        (TAG, None, True),
        (f'"x", W/{TAG}', None, True),
        ("*", None, True),
        ('"x"', DATE, False),
        (None, DATE, True),
        (None, EARLIER, False),
        (None, "nonsense", False),
        (None, None, False),
    ],
)
def test_a_client_that_has_the_file_is_told_so(tags: str | None, since: str | None, unchanged: bool) -> None:
    headers = {"if-none-match": tags, "if-modified-since": since}
    assert is_unchanged(headers.get, TAG, CHANGED) is unchanged


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("a.txt", 'inline; filename="a.txt"'),
        ("", "inline"),
        ("Grüße.txt", "inline; filename=\"Gr__e.txt\"; filename*=UTF-8''Gr%C3%BC%C3%9Fe.txt"),
        ('a";x="b', "inline; filename=\"a__x=_b\"; filename*=UTF-8''a%22%3Bx%3D%22b"),
        ("a\r\nSet-Cookie: b", 'inline; filename="a__Set-Cookie: b"'),
    ],
)
def test_a_name_makes_one_clean_header(name: str, header: str) -> None:
    assert disposition(name, inline=True) == header
    header.encode("ascii")
