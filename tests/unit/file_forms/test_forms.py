"""Forms as bytes: whatever the cuts between the pieces, the same parts come out."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniflex.errors import BodyTooLarge, MultipartError
from maniflex.features.files.forms import Form, FormLimits
from maniflex.pipeline.watch import ClientGone

BOUNDARY = b"--x1"
TYPE = b"multipart/form-data; boundary=" + BOUNDARY
LIMITS = FormLimits(size=1_000_000, parts=5)


def part(name: str, content: bytes, *headers: str, filename: str | None = None) -> bytes:
    more = "" if filename is None else f'; filename="{filename}"'
    lines = [f'Content-Disposition: form-data; name="{name}"{more}', *headers, "", ""]
    return b"--" + BOUNDARY + b"\r\n" + "\r\n".join(lines).encode() + content + b"\r\n"


def whole(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--" + BOUNDARY + b"--\r\n"


def pieces_of(body: bytes, *cuts: int, gone: bool = False) -> Any:
    edges = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    pieces = [body[a:b] for a, b in pairwise(edges)]

    async def receive() -> dict[str, Any]:
        if not pieces:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces) or gone}

    return receive


async def read(
    receive: Any, content_type: bytes = TYPE, limits: FormLimits = LIMITS, **more: Any
) -> list[Any]:
    form = Form(receive, content_type, limits, **more)
    parts = [(p.name, p.filename, p.content_type, await p.read(10**6)) async for p in form]
    return [*parts, form.digest] if more else parts


BODY = whole(
    part("title", "Grüße".encode()),
    part(
        "cover",
        b"\r\n--" + BOUNDARY[:-1] + b"\r\n\x00\xff",
        "Content-Type: image/png",
        filename="C:\\a\\b.png",
    ),
    part("empty", b""),
)
PARTS = [
    ("title", None, None, "Grüße".encode()),
    ("cover", "b.png", "image/png", b"\r\n--" + BOUNDARY[:-1] + b"\r\n\x00\xff"),
    ("empty", None, None, b""),
]


@given(st.lists(st.integers(0, len(BODY)), max_size=30))
async def test_the_parts_do_not_depend_on_where_the_body_is_cut(cuts: list[int]) -> None:
    assert await read(pieces_of(BODY, *cuts)) == PARTS


async def test_a_part_that_nobody_reads_is_passed_over() -> None:
    form = Form(pieces_of(BODY), TYPE, LIMITS)
    assert [p.name async for p in form] == ["title", "cover", "empty"]


async def test_bytes_behind_the_last_boundary_mean_nothing() -> None:
    assert await read(pieces_of(BODY + b"behind")) == PARTS


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing of a form",
        BODY[:-10],
        part("a", b"1"),
        b"--" + BOUNDARY + b"\r\n\r\nno headers\r\n--" + BOUNDARY + b"--",
        b"--" + BOUNDARY + b"\r\nContent-Disposition: form-data\r\n\r\nno name\r\n--" + BOUNDARY + b"--",
        whole(part("a", b"1", "Content-Transfer-Encoding: base64")),
        whole(part("a", b"1", "X: " + "x" * 9000)),
        whole(part("a", b"1", *(f"X-{n}: {'x' * 2000}" for n in range(5)))),
        whole(*(part(f"p{n}", b"") for n in range(6))),
        whole(part("a", b"1").replace(b'"a"', b'"\xff"')),
    ],
    ids=[
        "empty",
        "text",
        "cut",
        "no end",
        "no headers",
        "no name",
        "encoded",
        "long",
        "many",
        "parts",
        "utf8",
    ],
)
async def test_what_is_no_form_is_refused(body: bytes) -> None:
    with pytest.raises(MultipartError):
        await read(pieces_of(body))


@pytest.mark.parametrize("tail", [b"", b"; boundary=", b'; boundary=""', b"; boundary=" + b"x" * 71])
async def test_a_boundary_is_needed(tail: bytes) -> None:
    with pytest.raises(MultipartError):
        await read(pieces_of(BODY), b"multipart/form-data" + tail)


async def test_a_client_that_leaves_ends_the_reading() -> None:
    with pytest.raises(ClientGone):
        await read(pieces_of(BODY[:-20], gone=True))


async def test_more_than_the_limit_is_not_parsed() -> None:
    with pytest.raises(BodyTooLarge):
        await read(pieces_of(BODY), limits=FormLimits(size=len(BODY) - 1, parts=5))
    assert await read(pieces_of(BODY), limits=FormLimits(size=len(BODY), parts=5)) == PARTS


async def test_no_more_is_taken_from_the_client_than_is_asked_for() -> None:
    taken = 0
    content = part("a", b"x" * 300_000, filename="a")[:-2]
    inner = pieces_of(content + b"\r\n" + whole(), *range(0, 300_000, 50_000))

    async def receive() -> Any:
        nonlocal taken
        taken += 1
        return await inner()

    form = Form(receive, TYPE, LIMITS)
    parts = aiter(form)
    first = await anext(parts)
    chunks = aiter(first)
    await anext(chunks)
    assert taken <= 2


async def test_two_sendings_of_one_form_have_one_digest() -> None:
    other = b"--other"
    again = (
        BODY.replace(BOUNDARY[:-1] + b"\r\n\x00", b"KEEP")
        .replace(BOUNDARY, other)
        .replace(b"KEEP", BOUNDARY[:-1] + b"\r\n\x00")
    )
    *_, digest = await read(pieces_of(BODY), digests=True)
    *_, same = await read(pieces_of(again, 5, 60), b"multipart/form-data; boundary=" + other, digests=True)
    assert digest == same
    for changed in (BODY.replace(b"title", b"titlE"), BODY.replace(b"image/png", b"image/gif")):
        *_, another = await read(pieces_of(changed), digests=True)
        assert another != digest
