"""`strict` and `production`: what a start would only warn of, or would serve to the world, stops it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from maniflex import Context, DeclarationError, Model, Next, Server, Trace, field, file
from maniflex.cli import main
from maniflex.config import Limits
from maniflex.doctor.run import codes
from maniflex.middleware import auth, db
from maniflex.testing import client
from tests.kit import schema
from tests.kit.declarations import refusal_of
from tests.kit.notes import Note


class Tag(Model):
    text: str


class Order(Model):
    text: str
    buyer_id: str
    invoice_id: str = field(relation=None)


class Film(Model):
    poster: str | None = file()


READY: dict[str, Any] = {
    "database": ":memory:",
    "auto_migrate": False,
    "openapi_enabled": True,
    "docs_enabled": False,
}


def careless_server(tmp_path: Path, **settings: Any) -> Server:
    server = Server(":memory:", storage="memory:", static_dir=tmp_path / "missing", **settings)
    server.register(Order, Film)
    return server


def test_every_warning_of_the_declaration_is_in_one_message(tmp_path: Path) -> None:
    files, buyer, static = sorted(refusal_of(careless_server(tmp_path, strict=True)).problems)

    assert "/files: no auth middleware covers" in files
    assert buyer.startswith("Order.buyer_id: no model named 'Buyer' is registered")
    assert static.startswith("static_dir: there is no directory")


def test_without_it_they_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    careless_server(tmp_path).seal()

    assert "/files: no auth middleware covers" in caplog.text
    assert "static_dir: there is no directory" in caplog.text
    assert "buyer_id" not in caplog.text


async def test_a_table_that_differs_stops_a_strict_start_before_any_is_touched(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = Server(database=database_url)

    class Old(Model, table="notes"):
        text: str
        remark: str | None = None

    before.register(Old)
    async with client(before, database=database_url):
        pass
    strict = Server(strict=True)
    strict.register(Note, Tag)
    tables = await schema.tables(database_url)
    caplog.clear()
    with pytest.raises(DeclarationError, match=r"notes\.remark is in the database but not on Note"):
        async with client(strict, database=database_url):
            pass

    assert await schema.tables(database_url) == tables
    assert [record for record in caplog.records if record.levelno == logging.WARNING] == []


async def test_a_strict_server_without_warnings_starts_and_warns_later_as_usual(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(strict=True)
    server.register(Note)

    @server.on_start
    def hook() -> None:
        logging.getLogger("maniflex").warning("later")

    async with client(server, database=database_url) as http:
        assert (await http.get("/api/notes")).status_code == 200

    assert "later" in caplog.text


# -- production: check 57


def test_an_open_route_stops_the_start_with_every_other_missing_decision(database_url: str) -> None:
    server = Server(
        database_url,
        production=True,
        query_timeout=0,
        limits=Limits(max_limit=10**6),
        trace=Trace(bodies=True),
        static_dir="missing",
    )
    server.register(Note)

    @server.action("POST", "/pay")
    async def pay(ctx: Context) -> None: ...

    problems = "\n".join(refusal_of(server).problems)

    for part in (
        "GET, POST /api/notes: neither an authenticator nor an exemption",
        "GET, PATCH, DELETE /api/notes/{id}: neither",
        "POST /api/pay: neither",
        "query_timeout is 0",
        "auto_migrate is on",
        "max_limit=1000000",
        "bodies=True",
        "the API description is open",
        "static_dir: there is no directory missing",
    ):
        assert part in problems, problems


def guarded(server: Server) -> Server:
    server.register(Note)

    @server.pipeline.auth.middleware()
    async def sign_in(ctx: Context, next: Next) -> None:
        await next()

    return server


def test_one_open_action_among_guarded_routes_is_named_alone() -> None:
    server = Server(production=True, **READY)
    server.register(Note)
    server.pipeline.auth.register(auth.jwt("a secret of forty letters, which is long"), models=[Note])

    @server.action("POST", "/pay")
    async def pay(ctx: Context) -> None: ...

    [problem] = refusal_of(server).problems
    assert problem == "POST /api/pay: neither an authenticator nor an exemption stands before it"


@pytest.mark.parametrize("way", ["guard", "exemption", "in front"])
def test_a_decision_lets_it_start(way: str) -> None:
    server = Server(production=True, **READY)
    if way == "guard":
        guarded(server)
    elif way == "exemption":
        server.register(Note)
        server.pipeline.auth.register(auth.allow_anonymous())
    else:
        server.register(Note)
        server.http_access_controlled(reason="the gateway checks tokens")

    server.seal()

    problems, notes = server.production_report()
    assert problems == []
    assert ("the gateway checks tokens" in " ".join(notes)) is (way == "in front")


def test_a_guard_of_the_description_is_a_decision_too() -> None:
    server = guarded(Server(":memory:", production=True, auto_migrate=False))
    [problem] = refusal_of(server).problems
    assert "the API description is open" in problem

    server = guarded(Server(":memory:", production=True, auto_migrate=False))

    @server.pipeline.openapi.auth.middleware()
    async def staff(ctx: Any, next: Next) -> None:
        await next()

    server.seal()


def test_a_reason_is_needed_and_only_before_the_server_is_sealed() -> None:
    server = Server()
    with pytest.raises(DeclarationError, match="reason= says what controls it"):
        server.http_access_controlled(reason=" ")
    server.seal()
    with pytest.raises(DeclarationError, match="the server is sealed"):
        server.http_access_controlled(reason="late")


def test_check_production_says_the_same_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "careless_app.py").write_text(
        "from maniflex import Model, Server\n\n\nclass Note(Model):\n    text: str\n    author_id: str\n\n\n"
        "server = Server(static_dir='missing')\nserver.register(Note)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    answer = CliRunner().invoke(main, ["check", "careless_app:server", "--production"])

    assert answer.exit_code == 1
    for part in ("Note.author_id", "static_dir", "GET, POST /api/notes: neither", "auto_migrate is on"):
        assert part in answer.output


def silenced_server(**settings: Any) -> Server:
    """Everything that production would refuse, and the doctor is told that it is meant."""
    server = Server(":memory:", storage="memory:", query_timeout=0, trace=Trace(bodies=True), **settings)
    server.register(Note, Tag)

    @server.action("POST", "/pay")
    async def pay(ctx: Context) -> None: ...

    server.doctor_ignore("T101", Note, reason="a box at the door")
    server.doctor_ignore("T104", "GET /api/notes", reason="everybody may look")
    server.doctor_ignore("T102", reason="a gateway asks who pays")
    server.doctor_ignore("T103", reason="files of everybody")
    server.doctor_ignore("T105", "/docs", reason="an open API")
    server.doctor_ignore("T155", reason="one process alone")
    server.doctor_ignore("T172", reason="a machine of ours")
    server.doctor_ignore("T173", reason="long reports")
    return server


@pytest.mark.parametrize("production", [False, True])
def test_what_is_silenced_for_the_doctor_is_a_note_and_no_problem(production: bool) -> None:
    if production:
        problems = list(refusal_of(silenced_server(production=True)).problems)
        notes: list[str] = []
    else:
        problems, notes = silenced_server().production_report()

    undecided = "neither an authenticator nor an exemption stands before it"
    assert problems == [
        f"GET /api/notes/{{id}}: {undecided}",
        f"GET, POST /api/tags: {undecided}",
        f"GET, PATCH, DELETE /api/tags/{{id}}: {undecided}",
    ]
    if not production:
        assert f"T101 silenced: POST /api/notes: {undecided} (a box at the door)" in notes
        assert f"T104 silenced: GET /api/notes: {undecided} (everybody may look)" in notes
        for code in ("T102", "T103", "T105", "T155", "T172", "T173"):
            assert any(note.startswith(f"{code} silenced: ") for note in notes), code


def test_a_short_secret_and_a_wide_uniqueness_are_silenced_too() -> None:
    class Member(Model):
        tenant_id: str = field(relation=None)
        email: str = field(unique=True)

    server = Server(production=True, **READY)
    server.register(Member)
    server.pipeline.auth.register(auth.jwt("short"))
    server.pipeline.db.register(db.tenancy())
    server.doctor_ignore("T117", reason="a machine of ours")
    server.doctor_ignore("T113", "Member.email", reason="one account for all tenants")
    server.seal()

    problems, notes = server.production_report()
    assert problems == []
    assert sorted(note[:13] for note in notes) == ["T113 silenced", "T117 silenced"]


def test_the_codes_of_a_production_report_are_codes_of_the_doctor() -> None:
    _, notes = silenced_server().production_report()
    assert {note[:4] for note in notes} <= set(codes())
