"""Exports: what is in the file, who may have it, and what is refused before its first byte."""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import httpx
import openpyxl
import pytest

from maniflex import (
    Context,
    DeclarationError,
    Model,
    ModelOptions,
    Next,
    Operation,
    Server,
    WithDeletedAt,
    field,
)
from maniflex.pipeline.operation import COVERS
from maniflex.testing import client
from maniflex.testing.clock import FakeClock
from tests.kit.http import created, csv_cells, data_of, error_of, serving

XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"


class Invoice(Model, WithDeletedAt, export=True):
    number: str = field(filterable=True, sortable=True)
    tenant: str = field(default="a", filterable=True)
    total: int = field(default=0, filterable=True, sortable=True)
    token: str = field(default="hidden-value", hidden=True)
    password: str = field(default="written-value", writeonly=True)


class Everything(Model, export=True, table="everything"):
    text: str = ""
    number: int = 0
    ratio: float = 0.5
    price: Decimal = Decimal("0.10")
    flag: bool = False
    moment: datetime | None = None
    day: date | None = None
    clock: time | None = None
    key: UUID | None = None
    blob: bytes | None = None
    doc: dict[str, Any] | None = None


class Plain(Model):
    text: str = ""


def a_server(**settings: Any) -> Server:
    server = Server(clock=FakeClock(datetime(2026, 5, 31, 12, 30, 15, tzinfo=UTC)), **settings)
    server.register(Invoice, Everything, Plain)
    return server


@pytest.fixture
async def http(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client(a_server(), database=database_url) as http:
        yield http


def sheet(response: httpx.Response) -> list[list[Any]]:
    """The cells of an XLSX, its header first."""
    assert response.status_code == 200, response.text
    book = openpyxl.load_workbook(io.BytesIO(response.content))
    assert book.sheetnames == ["Data"]
    return [[cell.value for cell in row] for row in book["Data"].rows]


async def three(http: httpx.AsyncClient) -> None:
    for number, total in [("A", 3), ("B", 1), ("C", 2)]:
        await created(http, "/api/invoices", number=number, total=total)


# -- the file


async def test_an_export_has_a_line_for_every_row_and_no_page_ends_it(http: httpx.AsyncClient) -> None:
    for n in range(25):
        await created(http, "/api/invoices", number=str(n))
    for query in ("", "?page=2&limit=3"):
        found = csv_cells(await http.get(f"/api/invoices/export{query}"))
        assert [line[1] for line in found] == ["number", *map(str, range(25))]


async def test_columns_are_the_visible_fields_by_their_api_names(http: httpx.AsyncClient) -> None:
    await three(http)
    response = await http.get("/api/invoices/export")
    shown = data_of(await http.get("/api/invoices"))[0]
    assert csv_cells(response)[0] == list(shown)
    assert "hidden-value" not in response.text
    assert "written-value" not in response.text


async def test_filters_and_sorts_are_those_of_the_list(http: httpx.AsyncClient) -> None:
    await three(http)
    query = "filter=total:gte:2&sort=total:desc&select=number,total"
    assert csv_cells(await http.get(f"/api/invoices/export?{query}")) == [
        ["number", "total"],
        ["A", "3"],
        ["C", "2"],
    ]
    assert sheet(await http.get(f"/api/invoices/export?{query}&format=xlsx")) == [
        ["number", "total"],
        ["A", 3],
        ["C", 2],
    ]


async def test_an_empty_export_has_its_header(http: httpx.AsyncClient) -> None:
    query = "select=number,total"
    assert (await http.get(f"/api/invoices/export?{query}")).content == b"number,total\r\n"
    assert sheet(await http.get(f"/api/invoices/export?{query}&format=xlsx")) == [["number", "total"]]


async def test_deleted_rows_are_left_out(http: httpx.AsyncClient) -> None:
    gone = await created(http, "/api/invoices", number="gone")
    await created(http, "/api/invoices", number="here")
    await http.delete(f"/api/invoices/{gone['id']}")
    assert csv_cells(await http.get("/api/invoices/export?select=number")) == [["number"], ["here"]]


async def test_every_kind_of_value_has_one_form_on_both_databases(http: httpx.AsyncClient) -> None:
    await created(
        http,
        "/api/everything",
        text='say "hi",\r\nthen go ü€😀',
        number=-9007199254740995,
        ratio=-0.25,
        price="12345678901234567890.100",
        flag=True,
        moment="2026-01-31T23:59:59.000001+02:00",
        day="2026-01-31",
        clock="09:30:00",
        key="0b5a2c64-4f0c-4a3e-9c3f-5d1f0a3b7c11",
        blob="AP8=",
        doc={"b": [1, -2.5, None], "a": "ü"},
    )
    select = "select=text,number,ratio,price,flag,moment,day,clock,key,blob,doc"
    [_, cells] = csv_cells(await http.get(f"/api/everything/export?{select}"))
    texts = [
        "2026-01-31T21:59:59.000001Z",
        "2026-01-31",
        "09:30:00",
        "0b5a2c64-4f0c-4a3e-9c3f-5d1f0a3b7c11",
        "AP8=",
        '{"b":[1,-2.5,null],"a":"ü"}',
    ]
    text, digits = 'say "hi",\r\nthen go ü€😀', "12345678901234567890.100"
    assert cells == [text, "-9007199254740995", "-0.25", digits, "true", *texts]

    [_, values] = sheet(await http.get(f"/api/everything/export?{select}&format=xlsx"))
    # A spreadsheet keeps 15 digits; what has more is text, so that none is lost.
    assert values[1:] == ["-9007199254740995", -0.25, digits, True, *texts]
    assert str(values[0]).replace("_x000D_", "\r").replace("\n\n", "\n") in (text, text.replace("\r\n", "\n"))


async def test_null_is_an_empty_cell(http: httpx.AsyncClient) -> None:
    await created(http, "/api/everything", text="x")
    assert csv_cells(await http.get("/api/everything/export?select=moment,text")) == [
        ["moment", "text"],
        ["", "x"],
    ]
    assert sheet(await http.get("/api/everything/export?select=moment,text&format=xlsx"))[1] == [None, "x"]
    assert (await http.get("/api/everything/export?select=doc")).content == b'doc\r\n""\r\n'


async def test_headers_say_what_the_file_is_and_when_it_was_made(http: httpx.AsyncClient) -> None:
    response = await http.get("/api/invoices/export")
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert response.headers["content-disposition"] == 'attachment; filename="invoices-20260531T123015Z.csv"'
    assert response.headers["x-request-id"]
    response = await http.get("/api/invoices/export?format=xlsx")
    assert response.headers["content-type"] == XLSX
    assert response.headers["content-disposition"] == 'attachment; filename="invoices-20260531T123015Z.xlsx"'


async def test_head_gives_the_headers_and_no_file(http: httpx.AsyncClient) -> None:
    await three(http)
    response = await http.head("/api/invoices/export?format=xlsx")
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"] == XLSX
    assert (await http.head("/api/invoices/export?format=pdf")).status_code == 400
    options = await http.options("/api/invoices/export")
    assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")


# -- refusals


@pytest.mark.parametrize("format", ["", "pdf", "CSV", "csv,xlsx", "../csv"])
async def test_a_format_there_is_none_of_is_400(http: httpx.AsyncClient, format: str) -> None:
    error_of(await http.get("/api/invoices/export", params={"format": format}), 400, "INVALID_FORMAT")


@pytest.mark.parametrize(
    "query",
    [
        "filter=token:eq:x",
        "sort=password",
        "select=token",
        "select=password",
        "select=nothing",
        "filter=nothing:eq:1",
        "include=tenant",
        "cursor=",
        "cursor=abc",
        "page=0",
        "q=text",
        "select=number%00",
    ],
)
async def test_what_a_list_refuses_an_export_refuses_too(http: httpx.AsyncClient, query: str) -> None:
    error_of(await http.get(f"/api/invoices/export?{query}"), 400, "INVALID_QUERY")


async def test_a_model_that_did_not_ask_for_exports_has_none(http: httpx.AsyncClient) -> None:
    error_of(await http.get("/api/plains/export"), 404, "NOT_FOUND")


@pytest.mark.parametrize("format", ["csv", "xlsx"])
async def test_more_rows_than_allowed_are_refused_before_the_first_byte(
    database_url: str, format: str
) -> None:
    server = Server()
    server.register(Invoice, ModelOptions(max_export_rows=2))
    async with client(server, database=database_url) as http:
        await three(http)
        url = f"/api/invoices/export?format={format}"
        error = error_of(await http.get(url), 413, "EXPORT_TOO_LARGE")
        assert "at most 2" in error["message"]
        assert (await http.head(url)).status_code == 413
        assert (await http.get(f"{url}&filter=total:gte:2")).status_code == 200


async def test_a_text_longer_than_a_cell_of_a_sheet_is_refused_not_cut(http: httpx.AsyncClient) -> None:
    await created(http, "/api/everything", text="x" * 32_767)
    [_, [cell]] = sheet(await http.get("/api/everything/export?format=xlsx&select=text"))
    assert len(cell) == 32_767
    await created(http, "/api/everything", text="x" * 32_768)
    error = error_of(await http.get("/api/everything/export?format=xlsx"), 413, "EXPORT_TOO_LARGE")
    assert "'text'" in error["message"]
    assert len(csv_cells(await http.get("/api/everything/export?select=text"))[2][0]) == 32_768


def test_a_singleton_cannot_be_exported() -> None:
    class Settings(Model, singleton=True, export=True):
        theme: str = "dark"

    server = Server(":memory:")
    server.register(Settings)
    with pytest.raises(DeclarationError, match="Settings: export= is for lists"):
        server.seal()


async def test_without_the_package_for_sheets_an_export_has_no_xlsx(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    server = Server()
    server.register(Invoice)
    async with client(server, database=database_url) as http:
        assert (await http.get("/api/invoices/export")).text.startswith("id,")
        assert (await http.get("/api/invoices/export?format=csv")).status_code == 200
        for method in ("GET", "HEAD"):
            assert (await http.request(method, "/api/invoices/export?format=xlsx")).status_code == 400
        refused = await http.get("/api/invoices/export?format=xlsx")
        assert error_of(refused, 400, "INVALID_FORMAT")["message"] == "an export is written as csv or jsonl"
        operation = (await server.openapi())["paths"]["/api/invoices/export"]["get"]
    [format] = [p for p in operation["parameters"] if p["name"] == "format"]
    assert "xlsx" not in str(format)
    assert list(operation["responses"]["200"]["content"]) == ["text/csv", "application/jsonl"]


# -- rules


def test_rules_for_lists_cover_exports() -> None:
    assert Operation.EXPORT in COVERS[Operation.LIST]


@pytest.mark.parametrize("operation", [Operation.LIST, Operation.EXPORT])
async def test_a_rule_for_lists_refuses_the_export_and_its_head(
    database_url: str, operation: Operation
) -> None:
    server = a_server()

    @server.pipeline.auth.middleware(operations=[operation])
    async def nobody(ctx: Context, next: Next) -> None:
        ctx.abort(401, "UNAUTHORIZED", "nobody may")

    async with client(server, database=database_url) as http:
        error_of(await http.get("/api/invoices/export"), 401, "UNAUTHORIZED")
        assert (await http.head("/api/invoices/export")).status_code == 401


async def test_a_rule_for_exports_leaves_the_list_alone(database_url: str) -> None:
    server = a_server()

    @server.pipeline.auth.middleware(operations=[Operation.EXPORT])
    async def nobody(ctx: Context, next: Next) -> None:
        ctx.abort(403, "FORBIDDEN", "no files")

    async with client(server, database=database_url) as http:
        assert (await http.get("/api/invoices")).status_code == 200
        error_of(await http.get("/api/invoices/export"), 403, "FORBIDDEN")


@pytest.mark.parametrize("step", ["auth", "deserialize", "validate", "service", "db"])
@pytest.mark.parametrize("format", ["csv", "xlsx"])
async def test_a_forced_scope_binds_the_export_from_every_step(
    database_url: str, step: str, format: str
) -> None:
    server = a_server()

    @getattr(server.pipeline, step).middleware(models=[Invoice], operations=[Operation.LIST])  # type: ignore[untyped-decorator]
    async def own(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant", ctx.header("x-tenant"))
        await next()

    async with client(server, database=database_url) as http:
        for tenant in "ab":
            for n in range(2):
                await created(http, "/api/invoices", number=f"{tenant}{n}", tenant=tenant, total=n)
        for query in ("", "&filter=tenant:eq:a", "&filter[0]=tenant:eq:a&filter[0]=total:gte:0"):
            url = f"/api/invoices/export?format={format}&select=number{query}"
            response = await http.get(url, headers={"x-tenant": "b"})
            found = (csv_cells if format == "csv" else sheet)(response)
            assert [row[0] for row in found[1:]] == ([] if query == "&filter=tenant:eq:a" else ["b0", "b1"])
        response = await http.get("/api/invoices/export", headers={"x-tenant": "nobody"})
        assert len(csv_cells(response)) == 1


async def test_the_cap_counts_only_rows_inside_the_scope(database_url: str) -> None:
    server = Server()
    server.register(Invoice, ModelOptions(max_export_rows=2))

    @server.pipeline.auth.middleware(operations=[Operation.LIST])
    async def own(ctx: Context, next: Next) -> None:
        ctx.query.force("tenant", "b")
        await next()

    async with client(server, database=database_url) as http:
        await three(http)
        assert len(csv_cells(await http.get("/api/invoices/export"))) == 1


# -- redaction


@pytest.mark.parametrize("step", ["auth", "service", "db", "response"])
@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize("format", ["csv", "xlsx"])
async def test_a_column_a_middleware_takes_out_is_gone_with_its_header(
    database_url: str, step: str, at: str, format: str
) -> None:
    server = a_server()

    async def redact(ctx: Context, next: Next) -> None:
        ctx.export_columns.remove("total")
        await next()

    getattr(server.pipeline, step).register(redact, operations=[Operation.EXPORT], at=at)
    async with client(server, database=database_url) as http:
        await created(http, "/api/invoices", number="A", total=777)
        for query in ("", "&select=number,total", "&select=number"):
            response = await http.get(f"/api/invoices/export?format={format}{query}")
            found = (csv_cells if format == "csv" else sheet)(response)
            assert "total" not in found[0]
            assert "number" in found[0]
            assert not any(str(cell) == "777" for row in found for cell in row)


async def test_no_middleware_can_add_a_secret_column(database_url: str) -> None:
    server = a_server()

    @server.pipeline.service.middleware(operations=[Operation.EXPORT])
    async def greedy(ctx: Context, next: Next) -> None:
        ctx.export_columns = ["total", "token", "password", "number", "nothing"]
        await next()

    async with client(server, database=database_url) as http:
        await created(http, "/api/invoices", number="A", total=1)
        assert csv_cells(await http.get("/api/invoices/export")) == [["total", "number"], ["1", "A"]]
        assert csv_cells(await http.get("/api/invoices/export?select=number")) == [["number"], ["A"]]


async def test_response_middleware_sees_the_answer_and_may_add_to_it(database_url: str) -> None:
    server = a_server()

    @server.pipeline.response.middleware(operations=[Operation.EXPORT], at="after")
    async def mark(ctx: Context, next: Next) -> None:
        assert ctx.response is not None
        ctx.response.set_header("cache-control", "no-store")
        await next()

    async with client(server, database=database_url) as http:
        assert (await http.get("/api/invoices/export")).headers["cache-control"] == "no-store"
        assert (await http.get("/api/invoices/export?format=x")).headers["cache-control"] == "no-store"


async def test_rows_a_middleware_puts_in_place_are_what_is_written(database_url: str) -> None:
    server = a_server()

    @server.pipeline.db.middleware(models=[Invoice], operations=[Operation.LIST], at="replace")
    async def mine(ctx: Context, next: Next) -> None:
        ctx.result = [record for record in await ctx.db(Invoice).list() if record.total > 1]

    @server.pipeline.db.middleware(models=[Everything], operations=[Operation.LIST], at="replace")
    async def nothing(ctx: Context, next: Next) -> None:
        ctx.result = []

    async with client(server, database=database_url) as http:
        await three(http)
        await created(http, "/api/everything", text="unseen")
        assert len(csv_cells(await http.get("/api/invoices/export?select=number"))) == 3
        assert csv_cells(await http.get("/api/everything/export?select=text")) == [["text"]]


async def test_an_export_without_any_column_left_is_empty(database_url: str) -> None:
    server = a_server()

    @server.pipeline.service.middleware(operations=[Operation.EXPORT])
    async def nothing_is_yours(ctx: Context, next: Next) -> None:
        ctx.export_columns.clear()
        await next()

    async with client(server, database=database_url) as http:
        await three(http)
        assert (await http.get("/api/invoices/export")).text.strip() == ""
        assert sheet(await http.get("/api/invoices/export?format=xlsx")) in ([], [[None]])


async def test_a_search_narrows_the_export_as_it_does_the_list(database_url: str) -> None:
    class Note(Model, export=True):
        text: str = field(searchable=True, sortable=True)

    async with serving(database_url, Note) as http:
        for text in ("red apples", "green pears", "an apple pie"):
            await created(http, "/api/notes", text=text)
        for query in ("q=apple", "q=apple&sort=text"):
            listed = [note["text"] for note in data_of(await http.get(f"/api/notes?{query}"))]
            assert len(listed) == 2
            exported = csv_cells(await http.get(f"/api/notes/export?{query}&select=text"))
            assert [cell for [cell] in exported] == ["text", *listed]


async def test_an_export_in_process_gives_its_bytes_as_they_come(database_url: str) -> None:
    server = a_server()
    async with client(server, database=database_url) as http:
        await three(http)
        response = await server.execute(Operation.EXPORT, Invoice, query="select=number&sort=number:desc")
        assert response.stream is not None
        assert b"".join([chunk async for chunk in response.stream]) == b"number\r\nC\r\nB\r\nA\r\n"
