"""`maniflex openapi --check`: what breaks clients of a kept document, and what does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maniflex.openapi.breaking import breaking_changes
from tests.kit.bookshop import make_shop
from tests.kit.commands import Commands

Document = dict[str, Any]
BOOKS = "/api/books"


@pytest.fixture(scope="module")
def document() -> Document:
    import asyncio

    return asyncio.run(make_shop().openapi())


def test_a_document_breaks_nothing_of_itself(document: Document) -> None:
    assert breaking_changes(document, document) == []


def remove_field(new: Document) -> None:
    del new["components"]["schemas"]["Book"]["properties"]["stock"]


def require_field(new: Document) -> None:
    new["components"]["schemas"]["BookCreate"]["required"].append("price")


def change_type(new: Document) -> None:
    new["components"]["schemas"]["Book"]["properties"]["stock"]["type"] = "string"


def remove_operation(new: Document) -> None:
    del new["paths"][BOOKS]["post"]


def remove_parameter(new: Document) -> None:
    operation = new["paths"][BOOKS]["get"]
    operation["parameters"] = [one for one in operation["parameters"] if one.get("name") != "sort"]


def narrow_enum(new: Document) -> None:
    new["components"]["schemas"]["BookCreate"]["properties"]["status"]["enum"] = ["draft"]


def narrow_length(new: Document) -> None:
    new["components"]["schemas"]["BookCreate"]["properties"]["title"]["maxLength"] = 10


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (remove_field, "GET /api/books: 200: data: the field 'stock' was removed"),
        (require_field, "POST /api/books: body: the field 'price' is required now"),
        (change_type, "GET /api/books: 200: data: stock: the type was integer and is string"),
        (remove_operation, "POST /api/books: the operation was removed"),
        (remove_parameter, "GET /api/books: the query parameter 'sort' was removed"),
        (narrow_enum, "POST /api/books: body: status: no longer takes published, archived"),
        (narrow_length, "POST /api/books: body: title: maxLength is 10 now"),
    ],
)
def test_what_breaks_clients_is_told(
    document: Document, change: Callable[[Document], None], sentence: str
) -> None:
    new = copy.deepcopy(document)
    change(new)
    assert sentence in breaking_changes(document, new)
    reverse = breaking_changes(new, document)
    assert (reverse == []) == (change is not change_type)  # the other way round it only adds


APP = """
from maniflex import Model, Server
class Note(Model):
    text: str
    {extra}
server = Server()
server.register(Note)
"""


def test_the_command_reports_a_removed_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Commands(tmp_path, "sqlite:///x.db", monkeypatch)
    app, kept = tmp_path / "app.py", tmp_path / "kept.json"
    app.write_text(APP.format(extra="pages: int = 1"))
    run("openapi", "app:server", "--out", "kept.json")
    assert "/api/notes" in json.loads(kept.read_text())["paths"]
    assert "nothing breaks" in run("openapi", "app:server", "--check", "kept.json")
    app.write_text(APP.format(extra=""))
    assert "the field 'pages' was removed" in run("openapi", "app:server", "--check", "kept.json", code=1)
    kept.write_text("[]")
    run("openapi", "app:server", "--check", "kept.json", code=2)
