"""Which guards stand before each route, as commands and the API description tell (X15, X16, O2, O3)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from openapi_spec_validator import validate

from maniflex import Context, DeclarationError, Model, Next, Operation, Server, field
from maniflex.cli import main
from maniflex.config import Limits
from maniflex.middleware import auth, db, openapi, response
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.entry import (
    ANYWHERE,
    AuthEntry,
    Entry,
    EntryDocs,
    Seat,
    SecretKeeper,
    Trait,
    answer_header,
    header_parameter,
)
from maniflex.pipeline.registration import ACTION, AuthPart


class Note(Model, export=True):
    text: str = field(unique=True)


class SignIn(AuthEntry, SecretKeeper):
    """An authenticator, as far as descriptions are concerned."""

    name = "auth.test"
    homes: ClassVar = {"auth": ANYWHERE, ACTION: ANYWHERE}
    part = AuthPart.AUTHENTICATOR
    refused: ClassVar = {401: ["UNAUTHORIZED", "TOKEN_EXPIRED", "INVALID_TOKEN"]}

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        scheme = {"type": "http", "scheme": "bearer"}
        return EntryDocs(security={"bearer": scheme}, refusals=self.refused)

    def production_problems(self, seat: Seat) -> Iterable[str]:
        yield "the secret is short"


class Exempt(AuthEntry):
    """An exemption."""

    name = "auth.open"
    homes: ClassVar = {"auth": ANYWHERE}
    part = AuthPart.EXEMPTION


class Limit(Entry):
    """A limit with everything an entry can say of its routes."""

    name = "db.limit"
    homes: ClassVar = {"db": ANYWHERE}
    traits = Trait.VARIES_BY_CALLER

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs:
        return EntryDocs(
            parameters=[header_parameter("X-Plan", "The plan of the caller.", required=True)],
            refusals={429: ["RATE_LIMITED"]},
            answer_headers={"RateLimit-Limit": answer_header("How many requests there may be.")},
        )


def a_server(**settings: Any) -> Server:
    server = Server("sqlite:///app.db", **settings)
    server.register(Note)

    @server.action("POST", "/notes/{id}/pin")
    async def pin(ctx: Context) -> None: ...

    return server


def guarded() -> Server:
    server = a_server()
    server.pipeline.auth.register(Exempt(), operations=[Operation.LIST])
    server.pipeline.auth.register(SignIn())
    server.pipeline.db.register(Limit(), models=[Note])
    return server


def test_the_guards_of_every_route_are_known() -> None:
    guards = {(method, path): str(g) for method, path, g in guarded().guards}

    assert guards["GET", "/api/notes"] == "auth: auth.test; open: auth.open; guards: db.limit"
    assert guards["GET", "/api/notes/export"] == "auth: auth.test; open: auth.open; guards: db.limit"
    assert guards["POST", "/api/notes"] == "auth: auth.test; guards: db.limit"
    assert guards["POST", "/api/notes/{id}/pin"] == "auth: auth.test"
    assert guards["GET", "/live"] == "open"


async def test_the_description_shows_what_is_registered() -> None:
    """X15, O3."""
    server = guarded()
    server.pipeline.response.register(response.cache(60), models=[Note])
    document = await server.openapi()
    plain = await a_server().openapi()
    validate(document)
    listed = document["paths"]["/api/notes"]["get"]
    made = document["paths"]["/api/notes"]["post"]

    assert document["components"]["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}
    assert (listed["security"], made["security"]) == ([{"bearer": []}, {}], [{"bearer": []}])
    assert document["paths"]["/live"]["get"]["security"] == []
    assert "`INVALID_TOKEN`, `TOKEN_EXPIRED`, `UNAUTHORIZED`" in made["responses"]["401"]["description"]
    assert "`RATE_LIMITED`" in made["responses"]["429"]["description"]
    assert "TooManyRequests" in document["components"]["responses"]
    assert {"X-Plan", "If-None-Match"} <= {p.get("name") for p in listed["parameters"]}
    assert {"ETag", "Cache-Control", "RateLimit-Limit"} <= set(listed["responses"]["200"]["headers"])
    assert "304" in listed["responses"]
    assert "304" not in made["responses"]
    assert "If-None-Match" not in str(plain["paths"]["/api/notes"])
    assert "securitySchemes" not in plain["components"]


async def test_an_envelope_with_a_schema_is_described() -> None:
    server = a_server()
    schema = {"type": "object", "properties": {"items": {"type": "array"}}}
    server.pipeline.response.register(
        response.envelope(lambda ctx, data, meta: {"items": data}, schema=schema), models=[Note]
    )
    document = await server.openapi()
    validate(document)

    answer = document["paths"]["/api/notes"]["get"]["responses"]["200"]
    assert answer["content"]["application/json"]["schema"] == schema


async def test_a_scheme_of_the_application_wins() -> None:
    """O3."""
    server = guarded()
    own = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    server.pipeline.openapi.generate.register(openapi.add_security_scheme("bearer", own), at="after")
    document = await server.openapi()

    assert document["components"]["securitySchemes"]["bearer"] == own


async def test_version_tags_and_examples() -> None:
    """O2."""
    server = a_server()
    step = server.pipeline.openapi.generate
    step.register(openapi.set_version("7.1"), at="after")
    step.register(openapi.add_tag("Note", "What people wrote down."), at="after")
    step.register(openapi.add_tag("Later"), at="after")
    step.register(openapi.inject_request_example("post", "/api/notes", {"text": "hello"}), at="after")
    document = await server.openapi()
    validate(document)

    assert document["info"]["version"] == "7.1"
    tags = [(tag["name"], tag.get("description")) for tag in document["tags"]]
    assert tags.count(("Note", "What people wrote down.")) == 1
    assert ("Later", None) in tags
    body = document["paths"]["/api/notes"]["post"]["requestBody"]["content"]["application/json"]
    assert body["examples"] == {"example": {"value": {"text": "hello"}}}


def test_an_example_for_a_route_that_is_not_there_stops_the_start() -> None:
    server = a_server()
    server.pipeline.openapi.generate.register(openapi.inject_request_example("POST", "/api/note", {}))
    with pytest.raises(DeclarationError, match="nothing serves POST /api/note; did you mean '/api/notes'"):
        server.seal()


def test_what_should_not_be_served_to_the_world() -> None:
    server = a_server(query_timeout=0, limits=Limits(max_limit=1_000_000))
    problems, _ = server.production_report()
    guarded_problems, _ = guarded().production_report()
    bound = a_server()
    bound.pipeline.db.register(db.force_filter("id", "mine"), models=[Note])
    _, notes = bound.production_report()

    assert any(p.startswith("GET, POST /api/notes: neither") for p in problems)
    assert any(p.startswith("POST /api/notes/{id}/pin: neither") for p in problems)
    for part in ("query_timeout", "auto_migrate", "max_limit=1000000"):
        assert any(part in problem for problem in problems)
    assert not any("/live" in problem for problem in problems)
    assert [p.partition(" ")[0] for p in guarded_problems] == ["the", "auto_migrate", "auth.test:"]
    assert any("Note.text is unique" in note for note in notes)


SHORT = "only 31 bytes of a short secret"
LONG = SHORT + "!"


def of_secrets(server: Server) -> list[str]:
    problems, _ = server.production_report()
    return [problem for problem in problems if "secret" in problem]


def test_short_secrets_should_not_be_served() -> None:
    """X16: of tokens, of CSRF, of tokens that are issued here, and before the description."""
    for secret, expected in ((SHORT, True), (LONG, False)):
        server = a_server()
        server.pipeline.auth.register(auth.jwt(secret))
        server.pipeline.auth.register(auth.csrf(secret=secret))
        problems = of_secrets(server)
        texts = [
            f"auth.{name}: the secret is shorter than 32 bytes and can be guessed" for name in ("jwt", "csrf")
        ]
        assert problems == (texts if expected else [])

        issuing = a_server()
        auth.Tokens(secret, issuer="us").mount(issuing)
        assert of_secrets(issuing) == (texts[:1] if expected else [])

        described = a_server()
        described.pipeline.openapi.auth.register(auth.jwt(secret))
        assert of_secrets(described) == (texts[:1] if expected else [])


class Wide(Model, limits=Limits(max_limit=50_000), global_searchable=True):
    text: str = field(searchable=True)


def test_search_and_the_limits_of_a_model_are_looked_at() -> None:
    server = a_server()
    server.register(Wide)
    server.enable_global_search()
    server.pipeline.auth.register(auth.jwt(LONG), models=[Note, Wide])
    problems, _ = server.production_report()

    assert any("Wide: limits: max_limit=50000" in problem for problem in problems)
    undecided = [problem.partition(":")[0] for problem in problems if "neither" in problem]
    assert undecided == ["POST /api/notes/{id}/pin", "GET /api/search"]


def test_own_middleware_and_open_actions_are_decisions() -> None:
    server = Server("sqlite:///app.db", auto_migrate=False, openapi_enabled=True, docs_enabled=True)
    server.register(Note)

    @server.pipeline.auth.middleware(models=[Note])
    async def sign_in(ctx: Context, next: Next) -> None:
        await next()

    @server.action("GET", "/version", security=[])
    async def version(ctx: Context) -> str:
        return "1"

    assert server.production_report() == ([], [])


APP = """
from maniflex import Model, Server

class Note(Model):
    text: str

server = Server("sqlite:///notes.db", auto_migrate=False, openapi_enabled=True, docs_enabled=False)
server.register(Note)

async def sign_in(ctx, next):
    await next()
"""


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X16."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "open_app.py").write_text(APP)
    (tmp_path / "closed_app.py").write_text(APP + "\nserver.pipeline.auth.register(sign_in)\n")
    runner = CliRunner()

    listed = runner.invoke(main, ["routes", "closed_app", "--guards"])
    assert ["POST", "/api/notes", "auth: sign_in"] in [
        line.split(None, 2) for line in listed.output.splitlines()
    ]
    refused = runner.invoke(main, ["check", "open_app", "--production"])
    assert refused.exit_code == 1
    assert "GET, POST /api/notes: neither" in refused.output
    assert runner.invoke(main, ["check", "open_app"]).exit_code == 0
    assert runner.invoke(main, ["check", "closed_app", "--production"]).exit_code == 0
    assert not (tmp_path / "notes.db").exists()
