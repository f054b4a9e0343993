"""What pages say without a sample: options that do nothing yet, static files, limits."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from maniflex import DeclarationError, Model, ModelOptions, Server, WithDeletedAt, field
from maniflex.model.field import LocaleString
from maniflex.testing import client
from tests.kit.docs import rows
from tests.kit.notes import Note

WITH_VALUES: dict[str, Any] = {
    "max_export_rows": 10,
    "cursor_field": "created_at",
    "default_locale": "en",
    "locale_mode": "split",
}


def declared_with(option: str) -> Server:
    """A server with one model that uses a field option, or one of the companions."""
    Marked: type[Model]
    match option:
        case "locale":

            class Translated(Model):
                text: LocaleString = field(locale=True)

            Marked = Translated
    server = Server(database=":memory:")
    server.register(Note, Marked)
    return server


class Kept(Model, WithDeletedAt):
    text: str


def registered_with(option: str) -> Server:
    server = Server(database=":memory:")
    server.register(Kept, ModelOptions(**{option: WITH_VALUES.get(option, True)}))
    return server


FIELD_ROWS = rows("declare/fields.md", "Not active yet")
MODEL_ROWS = rows("declare/models.md", "Not active yet")
CASES = [*((name, row, declared_with) for name, row in FIELD_ROWS.items())]
CASES += [*((name, row, registered_with) for name, row in MODEL_ROWS.items())]


@pytest.mark.parametrize(
    ("option", "row", "declare"), CASES, ids=[f"{make.__name__}-{name}" for name, _, make in CASES]
)
def test_an_option_that_is_not_active_yet_does_what_its_row_says(
    option: str, row: str, declare: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = declare(option)

    with caplog.at_level(logging.WARNING, "maniflex"):
        if "the start" in row:
            with pytest.raises(DeclarationError, match=f"{option}=? is not available in this version"):
                server.seal()
        else:
            server.seal()
            assert [r.getMessage() for r in caplog.records if option in r.getMessage()] != []


def test_there_is_a_case_for_every_option_that_is_not_active_yet() -> None:
    assert len(FIELD_ROWS) == 1
    assert len(MODEL_ROWS) == 2


async def test_static_files_are_served_as_the_page_says(tmp_path: Path) -> None:
    for name, text in (("logo.txt", "logo"), ("docs/index.html", "docs"), ("bare/a.txt", "a")):
        (tmp_path / "static" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "static" / name).write_text(text)
    for name in (".env", ".git/config", "docs/.htpasswd", ".well-known/security.txt", ".well-known/.key"):
        (tmp_path / "static" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "static" / name).write_text("dots")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "static" / "link").symlink_to(tmp_path / "secret")
    server = Server(static_dir=str(tmp_path / "static"))
    server.register(Note)

    async with client(server) as http:
        answers = {
            path: await http.get(f"/static/{path}") for path in ("logo.txt", "docs/", "bare/", "link", "none")
        }
        dots = {
            path: (await http.request(method, f"/static/{path}")).status_code
            for method in ("HEAD", "GET")
            for path in (
                ".env",
                "%2eenv",
                "docs/%2e%2e/.env",
                ".git/config",
                ".git/",
                "docs/.htpasswd",
                ".well-known/security.txt",
                ".well-known/.key",
            )
        }
        refused = await http.post("/static/logo.txt")
        (tmp_path / "static" / "404.html").write_text("nothing here")
        page = await http.get("/static/none")

    assert {path: answer.status_code for path, answer in answers.items()} == {
        "logo.txt": 200,
        "docs/": 200,
        "bare/": 404,
        "link": 404,
        "none": 404,
    }
    assert [path for path, status in dots.items() if status != 404] == [".well-known/security.txt"]
    assert answers["logo.txt"].headers["etag"]
    assert answers["none"].json()["error"] == {"code": "NOT_FOUND", "message": "no such file"}
    assert refused.json()["error"] == {"code": "METHOD_NOT_ALLOWED", "message": "method not allowed"}
    assert refused.headers["allow"] == "GET, HEAD"
    assert (page.status_code, page.text) == (404, "nothing here")


async def test_a_limit_above_the_most_gives_the_most_and_meta_says_so(database_url: str) -> None:
    server = Server()
    server.register(Note)

    async with client(server, database=database_url) as http:
        listed = await http.get("/api/notes?limit=500")
        refused = await http.get("/api/notes?page=1000000001")

    assert listed.json()["meta"]["limit"] == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "INVALID_QUERY")
