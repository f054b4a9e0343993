"""Lines of files, odd ones too: what cannot be read is refused by line and hides no other line."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator

import pytest

from maniflex.transfer.source import (
    FileFormat,
    SourceRow,
    TextForm,
    UnreadableFile,
    detect_form,
    make_reader,
    read_rows,
)


async def rows_of(
    content: bytes, kind: str = "csv", *, size: int = 7, form: TextForm | None = None
) -> list[SourceRow]:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(content), size):
            yield content[start : start + size]

    reader = make_reader(FileFormat(kind), form or detect_form(content[:1000]))
    return [row async for rows in read_rows(pieces(), reader, 3) for row in rows]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
async def test_every_encoding_and_any_cut_gives_the_same_rows(encoding: str, size: int) -> None:
    text = 'name;note\r\n"Ä;b";"two\nlines ""here"""\r\n\r\n5" tape;x\r\nlast;€'
    rows = await rows_of(text.encode(encoding), size=size)
    assert [(row.line, dict(row.values)) for row in rows] == [
        (2, {"name": "Ä;b", "note": 'two\nlines "here"'}),
        (5, {"name": '5" tape', "note": "x"}),
        (6, {"name": "last", "note": "€"}),
    ]


async def test_lines_that_cannot_be_read_are_refused_alone() -> None:
    lines = [b"a,b", b"1,2", b"nul\x00,2", b"\xff\xfe,2", b"1,2,3", b"only", b"9,9"]
    rows = await rows_of(b"\n".join(lines))
    assert [row.line for row in rows if not row.problem] == [2, 7]
    problems = {row.line: row.problem for row in rows if row.problem}
    assert "NUL" in problems[3]
    assert "utf-8" in problems[4]
    assert problems[5] == "has 3 cells, and the first line has 2"
    assert problems[6] == "has 1 cells, and the first line has 2"
    latin = await rows_of("a,b\nä,ö\n".encode("latin-1"), form=TextForm(encoding="latin-1"))
    assert dict(latin[0].values) == {"a": "ä", "b": "ö"}
    [open_row] = await rows_of(b'a,b\n1,"never\nclosed\n')
    assert (open_row.line, open_row.problem) == (2, "opens a quotation mark that is never closed")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
async def test_a_huge_field_is_refused_and_is_never_whole_in_memory(kind: str) -> None:
    huge = b"x" * 10_000_000
    content = b"a,b\n1," + huge + b"\n3,4\n" if kind == "csv" else b'{"a": "' + huge + b'"}\n{"a": 1}\n'
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    rows = await rows_of(content, kind, size=65_536)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert [bool(row.problem) for row in rows] == [True, False]
    assert "longer than" in rows[0].problem
    assert peak < 20_000_000


async def test_jsonl_is_read_line_by_line() -> None:
    content = (
        b'{"a": 0.1000000000000000055}\n\n[1]\n{"a": NaN}\n{"a": 1e400}\n' + b"[" * 5000 + b'\n{"b": 2}\n'
    )
    rows = await rows_of(content, "jsonl")
    assert str(rows[0].values["a"]) == "0.1000000000000000055"
    assert [row.line for row in rows if row.problem] == [3, 4, 6]
    assert rows[-1].values == {"b": 2}


@pytest.mark.parametrize("content", [b"a,a\n1,2\n", b"\x00,b\n1,2\n", b"x" * 1001 * 2 + b"," * 1001 + b"\n"])
async def test_a_head_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(UnreadableFile):
        await rows_of(content)
