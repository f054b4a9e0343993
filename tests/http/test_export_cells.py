"""Cells of an export that a spreadsheet would run: they are text and stay text."""

from __future__ import annotations

import io
from base64 import b64decode
from collections.abc import AsyncIterator

import httpx
import openpyxl
import pytest

from maniflex import Model, Server
from maniflex.testing import client
from tests.kit.http import created, csv_cells


class Everything(Model, export=True, table="everything"):
    text: str = ""
    number: int = 0
    ratio: float = 0.5
    blob: bytes | None = None


@pytest.fixture
async def http(database_url: str) -> AsyncIterator[httpx.AsyncClient]:
    server = Server()
    server.register(Everything)
    async with client(server, database=database_url) as http:
        yield http


async def in_sheet(http: httpx.AsyncClient, name: str) -> list[tuple[str, str]]:
    """Type and value of every cell of a column of the XLSX."""
    response = await http.get(f"/api/everything/export?select={name}&format=xlsx")
    sheet = openpyxl.load_workbook(io.BytesIO(response.content))["Data"]
    return [(row[0].data_type, str(row[0].value)) for row in list(sheet.rows)[1:]]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝"])
async def test_a_text_that_would_be_a_formula_is_neutralised(http: httpx.AsyncClient, start: str) -> None:
    text = f'{start}HYPERLINK("http://x","y")'
    await created(http, "/api/everything", text=text, number=-5, ratio=-1.5)
    [_, cells] = csv_cells(await http.get("/api/everything/export?select=text,number,ratio"))
    assert cells == ["'" + text, "-5", "-1.5"]


async def test_a_text_in_a_sheet_is_never_a_formula_a_link_or_a_number(http: httpx.AsyncClient) -> None:
    for text in ["=1+1", "http://example.org/", "007", "{=SUM(A1)}"]:
        await created(http, "/api/everything", text=text)
    response = await http.get("/api/everything/export?select=text&format=xlsx")
    cells = [row[0] for row in openpyxl.load_workbook(io.BytesIO(response.content))["Data"].rows][1:]
    assert [cell.value for cell in cells] == ["=1+1", "http://example.org/", "007", "{=SUM(A1)}"]
    assert {cell.data_type for cell in cells} == {"s"}
    assert all(cell.hyperlink is None for cell in cells)


@pytest.mark.parametrize(
    "start", [" =", "  +", "\t=", "\r-", " \r\n @", "\xa0=", "\u3000＝", "\ufeff=", "\u200b+", "\x1f="]
)
async def test_blanks_in_front_of_a_formula_hide_it_from_nobody(http: httpx.AsyncClient, start: str) -> None:
    text = f"{start}1+1"
    await created(http, "/api/everything", text=text)
    assert csv_cells(await http.get("/api/everything/export?select=text")) == [["text"], ["'" + text]]
    [(kind, value)] = await in_sheet(http, "text")
    assert kind == "s"
    assert value.endswith("1+1")


@pytest.mark.parametrize("text", [" a = b", "  1+1", " (=)", "a\n=1", "_=", "'=1", "", " "])
async def test_a_text_that_is_no_formula_stays_as_it_is(http: httpx.AsyncClient, text: str) -> None:
    await created(http, "/api/everything", text=text)
    assert csv_cells(await http.get("/api/everything/export?select=text,number")) == [
        ["text", "number"],
        [text, "0"],
    ]


async def test_bytes_that_begin_like_a_formula_are_neutralised_in_csv_and_text_in_a_sheet(
    http: httpx.AsyncClient,
) -> None:
    await created(http, "/api/everything", blob="+/++")
    assert csv_cells(await http.get("/api/everything/export?select=blob")) == [["blob"], ["'+/++"]]
    [(kind, value)] = await in_sheet(http, "blob")
    assert (kind, b64decode(value)) == ("s", b64decode("+/++"))
