"""Files that strangers made: every line is stored or refused, and none of them stops the server."""

from __future__ import annotations

import tracemalloc
import zlib
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from maniflex import Model, Server, field
from maniflex.admin import ModelAdmin
from maniflex.admin.tables import AdminTransfer, AdminTransferPiece
from maniflex.transfer.source import FileFormat, TextForm, UnreadableFile, make_reader
from tests.kit.panel import Browser, text_of, visiting
from tests.kit.workbooks import encrypt_flags, make_workbook, override, row

TOO_LARGE, UNREADABLE = "too large to be read", "no xlsx file that can be read"


class Thing(Model):
    code: str = field(unique=True)
    note: str | None = None
    amount: float | None = None
    data: dict[str, Any] | None = None


class Keyed(Model):
    number: int | None = field(default=None, unique=True)
    price: Decimal | None = field(default=None, unique=True)
    token: UUID | None = field(default=None, unique=True)
    day: date | None = field(default=None, unique=True)
    name: str = ""


def make_server(**options: Any) -> Server:
    server = Server(**options)
    server.register(Thing, Keyed)
    admin = server.admin()
    admin.add(ModelAdmin(Thing, can_import=True))
    admin.add(ModelAdmin(Keyed, can_import=True))
    return server


async def import_file(browser: Browser, table: str, name: str, text: str, **controls: str) -> str:
    """What the page says when the file is imported, after its columns were looked at."""
    await browser.get(f"/{table}/import")
    place = await browser.send(f"/{table}/import", {}, files={"file": (name, text.encode())})
    await browser.get(place)
    step = {"id": place.rpartition("=")[2], "step": "check", **controls}
    place = await browser.send(f"/{table}/import", step)
    await browser.get(place)
    place = await browser.send(f"/{table}/import", {**step, "step": "import"})
    return text_of(await browser.get(place))


DEEP = "[" * 900 + "]" * 900
ODD_LINES = {
    "deep": f'{{"code": "x", "data": {{"a": {DEEP}}}}}',
    "exponent": '{"code": "x", "amount": 1e99999999999999999999999}',
    "half a character": '{"code": "x", "note": "\\ud800"}',
    "half a character as a key": '{"code": "x", "data": {"\\ud83d": 1}}',
    "nul": '{"code": "x", "note": "a\\u0000b"}',
    "digits": '{"code": "x", "amount": ' + "9" * 5000 + "}",
    "infinity": '{"code": "x", "data": {"a": 1e400}}',
    "a list as the key": '{"code": ["x"]}',
    "an object as the key": '{"code": {"x": 1}}',
}


@pytest.mark.parametrize("upsert", ["", "code"])
@pytest.mark.parametrize("name", ODD_LINES)
async def test_an_odd_line_of_a_jsonl_file_is_refused_alone(
    database_url: str, name: str, upsert: str
) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        good = '{"code": "good 1", "note": "\\ud83d\\ude00", "amount": 1.5, "data": {}}'
        text = "\n".join([good, ODD_LINES[name], '{"code": "good 2"}'])
        page = await import_file(browser, "things", "things.jsonl", text, upsert=upsert)
        assert "created 2 updated 0 unchanged 0 refused 1" in page
        assert {one.code for one in await server.db(Thing).list()} == {"good 1", "good 2"}


async def test_an_odd_cell_of_json_in_a_csv_file_is_refused_alone(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        text = f'code,data\na,{{}}\nb,"{{""a"": {DEEP}}}"\nc,"{{""a"": ""\\ud800""}}"\n'
        page = await import_file(browser, "things", "things.csv", text)
        assert "created 1 updated 0 unchanged 0 refused 2" in page
        assert "is nested deeper than 100 levels" in page
        assert "contains half of a character" in page


@pytest.mark.parametrize(
    ("key", "value", "same", "bad"),
    [
        ("number", "5", "+5", "abc"),
        ("number", "5", "05", "9" * 30),
        ("price", "5.50", "5.5", "x"),
        ("token", "6ec0bd7f-11c0-43da-975e-2a8ad9ebae0b", "6EC0BD7F-11C0-43DA-975E-2A8AD9EBAE0B", "zz"),
        ("day", "2026-01-02", "2026-01-02", "99"),
    ],
)
async def test_a_key_finds_its_record_however_it_is_written(
    database_url: str, key: str, value: str, same: str, bad: str
) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        text = f"{key},name\n{value},A\n{bad},B\n"
        assert "created 1 updated 0 unchanged 0 refused 1" in await import_file(
            browser, "keyeds", "a.csv", text, upsert=key
        )
        text = f"{key},name\n{same},A\n{bad},B\n"
        assert "created 0 updated 0 unchanged 1 refused 1" in await import_file(
            browser, "keyeds", "a.csv", text, upsert=key
        )


def bombs() -> dict[str, tuple[bytes, str]]:
    good = row(2, "a1")
    return {
        "another part": (
            make_workbook(
                good, types=override("xl/styles.xml", "styles"), parts={"xl/styles.xml": "<a/>" * 17_000_000}
            ),
            TOO_LARGE,
        ),
        "texts among the sheets": (
            make_workbook(
                good,
                types=override("xl/worksheets/t.xml", "sharedStrings"),
                parts={"xl/worksheets/t.xml": "<sst>" + "<si><t>a</t></si>" * 300_000 + "</sst>"},
            ),
            TOO_LARGE,
        ),
        "one cell": (make_workbook(row(2, "A" * 5_000_000)), TOO_LARGE),
        "one row": (make_workbook('<row r="2">' + '<c r="A2"/>' * 500_000 + "</row>"), TOO_LARGE),
        "encrypted": (encrypt_flags(make_workbook(good)), UNREADABLE),
        "a sheet that is none": (make_workbook(good + "<row><c r='!!'/></row>"), UNREADABLE),
        "no zip": (b"PK\x03\x04" + b"\xff" * 200, UNREADABLE),
    }


def test_no_workbook_fills_the_memory() -> None:
    for name, (content, message) in bombs().items():
        tracemalloc.start()
        try:
            text = str(list(make_reader(FileFormat.XLSX, TextForm()).feed(content, is_last=True)))[:500]
        except UnreadableFile as refusal:
            text = str(refusal)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert message in text, (name, text)
        assert peak < 40_000_000, (name, peak)


def test_rows_that_a_workbook_claims_to_have_are_not_made_up() -> None:
    far = row(1_048_576, "z9") + row(99_999_999_999, "never")
    content = make_workbook(row(2, "a1") + far, size='<dimension ref="A1:XFD1048576"/>')
    rows = list(make_reader(FileFormat.XLSX, TextForm()).feed(content, is_last=True))
    assert [(one.line, dict(one.values)) for one in rows] == [
        (2, {"code": "a1"}),
        (1_048_576, {"code": "z9"}),
    ]
    wide = make_workbook(row(2, "a1") + '<row r="3"><c r="ZZZ3"><v>1</v></c></row>')
    rows = list(make_reader(FileFormat.XLSX, TextForm()).feed(wide, is_last=True))
    assert rows[1].problem == "has a value behind the last of the 1 columns"


async def test_the_file_of_refused_lines_holds_no_formula(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        head = "code,=cmd|' /C calc'!A0,@SUM(1),+1+1,amount"
        await browser.get("/things/import")
        place = await browser.send(
            "/things/import",
            {"step": "import"},
            files={"file": ("a.csv", f"{head}\nx,=1+1,-2+3,@x,many\n".encode())},
        )
        lines = (await browser.http.get(f"/admin{place}/refusals")).text.splitlines()
        assert len(lines) == 2
        for line in lines:
            assert not [cell for cell in line.split(",") if cell.lstrip('"')[:1] in ("=", "@", "+", "-")]
        assert not [cell for cell in lines[1].split(",") if cell.lstrip('"').startswith("\t")]


async def test_a_form_with_files_has_a_largest_size(sqlite_url: str) -> None:
    server = make_server(max_upload_size=100_000)
    async with visiting(server, sqlite_url) as browser:
        await browser.get("/things/import")
        large = {"file": ("a.csv", b"code\n" + b"x" * 200_000)}
        for path in ("/things", "/-/logout", "/-/operations/runs"):
            response = await browser.post(path, {}, files=large)
            assert response.status_code == 413, (path, response.status_code)
        await browser.send("/things/import", {}, files=large)  # a file that is imported may be larger
        for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
            response = await browser.http.post(
                "/admin/things", content=b"--y\r\n", headers={"content-type": kind}
            )
            assert response.status_code in (400, 403), kind


async def test_a_late_piece_of_a_worker_that_lost_its_lease_is_in_no_file(sqlite_url: str) -> None:
    server = make_server()
    async with visiting(server, sqlite_url) as browser:
        await browser.get("/things/import")
        place = await browser.send("/things/import", {}, files={"file": ("a.csv", b"code\nx1\n")})
        transfer = await server.db(AdminTransfer).read(place.rpartition("=")[2])
        await server.db(AdminTransferPiece).create(
            transfer_id=transfer.id, number=1, content=zlib.compress(b"late\n")
        )
        place = await browser.send("/things/import", {"id": transfer.id, "step": "import"})
        assert "created 1 updated 0 unchanged 0 refused 0" in text_of(await browser.get(place))
