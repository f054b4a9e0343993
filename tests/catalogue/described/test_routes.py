"""What the description says of each route is what stands before it, and nothing else (X15, O3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openapi_spec_validator import validate

from maniflex import AuthInfo, Context, Next, Server
from maniflex.middleware import auth, db, idempotency, openapi, response, service
from maniflex.pipeline.entry import Entry
from tests.catalogue.auth.kit import SECRET, Post, app
from tests.catalogue.auth.signing_in import login
from tests.catalogue.described.everything import KEY, everything
from tests.kit.notes import Note

BEARER = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}


async def described(server: Server) -> dict[str, Any]:
    document = await server.openapi()
    validate(document)
    return document


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return asyncio.run(described(everything().server))


def codes(document: dict[str, Any], method: str, path: str, status: int) -> set[str]:
    operation = document["paths"][path][method]
    return set(operation["x-error-codes"].get(str(status), ()))


def parameters(operation: dict[str, Any]) -> dict[str, Any]:
    return {p["name"]: p for p in operation.get("parameters", ()) if "name" in p}


def headers(document: dict[str, Any], method: str, path: str, status: int) -> set[str]:
    answer = document["paths"][path][method]["responses"][str(status)]
    if "$ref" in answer:
        answer = document["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    return set(answer["headers"]) - {"X-Request-Id"}


def fields_of(operation: dict[str, Any], status: int) -> set[str]:
    content = operation["responses"][str(status)]["content"]["application/json"]
    return set(content["schema"]["properties"]["data"]["required"])


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def test_nothing_is_referred_to_that_is_not_there(document: dict[str, Any]) -> None:
    for reference in references(document):
        _, _, kind, name = reference.split("/")
        assert name in document["components"][kind], reference


def test_alternatives_are_listed_by_the_schemes_they_need(document: dict[str, Any]) -> None:
    paths = document["paths"]
    assert paths["/api/invoices"]["get"]["security"] == [
        {"bearer": []},
        {"header_X-API-Key": []},
        {"basic": []},
    ]
    assert paths["/api/letters"]["get"]["security"] == [{"bearer": []}, {"cookie_session": []}]
    assert paths["/api/accounts"]["get"]["security"] == [{"bearer": []}, {}]
    assert paths["/api/accounts"]["post"]["security"] == [{"bearer": []}]
    schemes = document["components"]["securitySchemes"]
    assert schemes["bearer"] == BEARER
    assert schemes["basic"] == {"type": "http", "scheme": "basic"}
    assert schemes["header_X-API-Key"] == {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    assert schemes["cookie_session"] == {"type": "apiKey", "in": "cookie", "name": "session"}


def test_a_route_without_entries_shows_none_of_it(document: dict[str, Any]) -> None:
    for path in ("/api/plains", "/api/plains/{id}"):
        for method, operation in document["paths"][path].items():
            if method == "options":
                continue
            assert "security" not in operation
            assert not {"401", "403", "405", "429"} & set(operation["responses"])
            assert not any(p["in"] in ("header", "cookie") for p in parameters(operation).values())
            for status, answer in operation["responses"].items():
                assert not {"ETag", "Idempotent-Replayed", "RateLimit-Limit"} & set(answer.get("headers", ()))
                if status == "503":
                    assert codes(document, method, path, 503) == {"UNAVAILABLE"}


def test_refusals_are_those_of_the_entries_of_the_route(document: dict[str, Any]) -> None:
    of_tokens = {"UNAUTHORIZED", "INVALID_TOKEN", "TOKEN_EXPIRED", "TOKEN_MISSING_EXPIRY"}
    of_tokens |= {"TOKEN_NOT_YET_VALID", "TOKEN_FUTURE_ISSUED"}
    revoked = {"TOKEN_REVOKED", "TOKEN_NOT_REVOCABLE"}
    assert codes(document, "get", "/api/invoices", 401) == of_tokens | revoked
    assert codes(document, "get", "/api/letters", 401) == of_tokens
    assert codes(document, "get", "/api/invoices", 403) == set()  # nothing there forbids anything
    assert codes(document, "delete", "/api/invoices/{id}", 403) == {"FORBIDDEN"}
    assert codes(document, "patch", "/api/invoices/{id}", 403) == {"FIELD_FORBIDDEN"}
    assert codes(document, "delete", "/api/accounts/{id}", 405) == {"METHOD_BLOCKED"}
    assert codes(document, "patch", "/api/accounts/{id}", 405) == set()
    assert codes(document, "get", "/api/parcels", 503) == {"UNAVAILABLE", "JWKS_UNAVAILABLE"}
    signed = {"CSRF_TOKEN_MISSING", "CSRF_NO_SESSION", "CSRF_TOKEN_MISMATCH"}
    assert codes(document, "post", "/api/letters", 403) == signed
    assert codes(document, "get", "/api/letters", 403) == set()
    assert codes(document, "post", "/api/tasks", 404) == {"NOT_FOUND"}


def test_a_state_machine_is_on_the_writes_that_it_judges(document: dict[str, Any]) -> None:
    patch = document["paths"]["/api/invoices/{id}"]["patch"]
    assert "INVALID_TRANSITION" in codes(document, "patch", "/api/invoices/{id}", 422)
    assert "INVALID_TRANSITION" in codes(document, "post", "/api/invoices", 422)
    assert "WORKFLOW_HOOK_ERROR" in codes(document, "patch", "/api/invoices/{id}", 500)
    assert "WORKFLOW_HOOK_ERROR" not in codes(document, "post", "/api/invoices", 500)
    assert list(patch["x-transitions"]) == ["status"]
    restore = document["paths"]["/api/invoices/{id}/restore"]["post"]
    assert "INVALID_TRANSITION" not in str(restore)
    assert "FIELD_FORBIDDEN" not in str(restore)


def test_headers_of_requests_and_answers(document: dict[str, Any]) -> None:
    paths = document["paths"]
    key = parameters(paths["/api/invoices"]["post"])["Idempotency-Key"]
    assert (key["in"], key["required"], key["schema"]["maxLength"]) == ("header", True, 255)
    assert not parameters(paths["/api/twin"]["post"])["Idempotency-Key"]["required"]
    assert "Idempotency-Key" not in parameters(paths["/api/invoices/{id}"]["patch"])
    assert "Idempotent-Replayed" in headers(document, "post", "/api/invoices", 201)
    assert "Retry-After" in headers(document, "post", "/api/invoices", 409)
    assert "X-CSRF-Token" in parameters(paths["/api/comments"]["post"])
    assert "csrf_token" in parameters(paths["/api/comments"]["post"])
    assert "X-CSRF-Token" not in parameters(paths["/api/comments"]["get"])
    assert "Set-Cookie" in headers(document, "get", "/api/comments", 200)
    assert "If-None-Match" in parameters(paths["/api/invoices"]["get"])
    assert "ETag" in headers(document, "get", "/api/invoices", 200)
    limits = {"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}
    assert limits <= headers(document, "get", "/api/accounts", 200)
    assert limits | {"Retry-After"} == headers(document, "get", "/api/accounts", 429)
    assert "WWW-Authenticate" in headers(document, "get", "/api/invoices", 401)
    assert "Allow" in headers(document, "delete", "/api/accounts/{id}", 405)
    assert "Retry-After" in headers(document, "get", "/api/invoices", 503)


def test_the_routes_of_tokens_are_open_and_say_what_they_answer(document: dict[str, Any]) -> None:
    signing_in = document["paths"]["/api/auth/login"]["post"]
    assert signing_in["security"] == []
    assert codes(document, "post", "/api/auth/login", 401) == {"INVALID_CREDENTIALS"}
    assert codes(document, "post", "/api/auth/login", 429) == {"RATE_LIMITED"}
    assert set(signing_in["responses"]) & {"200", "201", "204"} == {"200"}
    refreshed = codes(document, "post", "/api/auth/refresh", 401)
    assert refreshed == {"INVALID_REFRESH_TOKEN", "REFRESH_TOKEN_REUSED"}
    assert document["paths"]["/api/auth/logout"]["post"]["security"] == [{"bearer": []}]
    for path in ("/api/auth/logout", "/api/auth/logout-all", "/api/out", "/api/out-all"):
        assert {s for s in document["paths"][path]["post"]["responses"] if s < "3"} == {"204"}
    assert {s for s in document["paths"]["/api/api_keys"]["post"]["responses"] if s < "3"} == {"201"}
    assert "TOKEN_NOT_REVOCABLE" in codes(document, "post", "/api/out", 401)
    assert {"access_token", "refresh_token"} <= fields_of(signing_in, 200)
    assert "key" in fields_of(document["paths"]["/api/api_keys"]["post"], 201)
    assert "key" not in fields_of(document["paths"]["/api/api_keys/{id}"]["get"], 200)


async def test_a_refresh_token_in_a_cookie_is_a_scheme_of_its_own() -> None:
    tokens = auth.Tokens(SECRET, issuer="us", refresh="cookie")
    server = app(tokens.bearer(), auth.csrf())
    tokens.mount(server, login=login)
    document = await described(server)

    operation = document["paths"]["/api/auth/refresh"]["post"]
    assert operation["security"] == [{"cookie_refresh_token": []}]
    assert "CSRF_TOKEN_MISSING" in codes(document, "post", "/api/auth/refresh", 403)
    assert "CSRF_TOKEN_MISSING" not in str(document["paths"]["/api/auth/login"])
    assert "Set-Cookie" in operation["responses"]["200"]["headers"]
    assert fields_of(operation, 200) == {"access_token", "token_type", "expires_in"}


async def test_an_exemption_that_has_no_effect_is_not_shown() -> None:
    """A37: only before the last authenticator does it let anybody pass."""
    late = await described(app(auth.jwt(SECRET), auth.allow_anonymous()))
    early = await described(app(auth.allow_anonymous(), auth.jwt(SECRET)))
    guarded = await described(app(auth.allow_anonymous(), auth.jwt(SECRET), auth.require_auth()))

    for path in ("/api/notes", "/api/me"):
        assert late["paths"][path]["get"]["security"] == [{"bearer": []}]
        assert early["paths"][path]["get"]["security"] == [{"bearer": []}, {}]
        assert guarded["paths"][path]["get"]["security"] == [{"bearer": []}]


async def test_own_middleware_may_refuse_and_names_no_scheme() -> None:
    async def own(ctx: Context, next: Next) -> None:
        await next()

    server = app()
    server.pipeline.auth.register(own, models=[Note])
    document = await described(server)

    assert {"401", "403"} <= set(document["paths"]["/api/notes"]["get"]["responses"])
    assert "security" not in document["paths"]["/api/notes"]["get"]
    assert not {"401", "403"} & set(document["paths"]["/api/posts"]["get"]["responses"])


async def test_the_entries_of_an_action_are_described() -> None:
    server = app()
    middleware: list[Entry] = [
        auth.api_keys(keys={KEY: AuthInfo(user_id="robot")}),
        auth.require_scope("pay"),
        db.rate_limit(5, 60),
        idempotency.keys(required=True),
        response.add_header("X-Shop", "1"),
    ]

    @server.action("POST", "/pay", middleware=middleware)
    async def pay(ctx: Context) -> None: ...

    document = await described(server)
    operation = document["paths"]["/api/pay"]["post"]
    assert operation["security"] == [{"header_X-API-Key": []}]
    assert set(operation["x-error-codes"]["403"]) == {"FORBIDDEN"}
    assert {"429", "503", "413", "422"} <= set(operation["responses"])
    assert parameters(operation)["Idempotency-Key"]["required"]
    assert {"X-Shop", "RateLimit-Limit", "Idempotent-Replayed"} <= set(
        operation["responses"]["200"]["headers"]
    )
    assert "security" not in document["paths"]["/api/me"]["get"]


async def test_a_limit_of_the_database_step_does_not_act_on_actions() -> None:
    server = app()
    server.pipeline.db.register(db.rate_limit(5, 60))
    document = await described(server)

    assert "429" in document["paths"]["/api/notes"]["get"]["responses"]
    assert "429" not in document["paths"]["/api/me"]["get"]["responses"]


async def test_a_guard_of_a_model_shows_where_other_routes_lead_to_it(document: dict[str, Any]) -> None:
    """K13: the tasks of a team are included in its answers, and have their own rule."""
    assert "FORBIDDEN" in codes(document, "get", "/api/tasks", 403)
    assert "FORBIDDEN" in codes(document, "post", "/api/twin", 403)  # code of an action may touch a team


async def test_the_description_describes_its_own_guard() -> None:
    """X6."""
    server = app()
    server.pipeline.openapi.auth.register(auth.jwt(SECRET))
    document = await described(server)

    operation = document["paths"]["/api/openapi.json"]["get"]
    assert operation["security"] == [{"bearer": []}]
    assert "TOKEN_EXPIRED" in operation["x-error-codes"]["401"]
    assert "security" not in document["paths"]["/api/notes"]["get"]


async def test_a_preflight_is_described_where_other_methods_are() -> None:
    server = app(openapi_all_methods=True)
    server.use(response.cors(["https://app.example.com"]))
    document = await described(server)

    assert codes(document, "options", "/api/notes", 403) == {"CORS_ORIGIN_DENIED", "CORS_HEADER_DENIED"}
    assert "Access-Control-Request-Method" in parameters(document["paths"]["/api/notes"]["options"])
    assert "CORS" not in str(document["paths"]["/api/notes"]["get"])


async def test_the_scheme_of_the_application_wins_by_its_name() -> None:
    """O3."""
    own = {"type": "openIdConnect", "openIdConnectUrl": "https://example.com/.well-known"}
    server = app(auth.jwt(SECRET))
    server.pipeline.openapi.generate.register(openapi.add_security_scheme("bearer", own), at="after")
    document = await described(server)

    assert document["components"]["securitySchemes"] == {"bearer": own}
    assert document["paths"]["/api/notes"]["get"]["security"] == [{"bearer": []}]


async def test_a_token_in_another_header_is_a_key_of_that_header() -> None:
    document = await described(app(auth.jwt(SECRET, header="X-Token!", allow_no_expiry=True)))

    [(name, scheme)] = document["components"]["securitySchemes"].items()
    assert (name, scheme["name"]) == ("header_X-Token.21", "X-Token!")
    assert "TOKEN_MISSING_EXPIRY" not in codes(document, "get", "/api/notes", 401)


async def test_switches_of_an_entry_change_what_is_described() -> None:
    server = app(auth.jwt(SECRET))
    server.pipeline.db.register(db.rate_limit(5, 60, on_error="allow"), models=[Note])
    server.pipeline.deserialize.register(idempotency.keys(on_error="run"), models=[Note], at="after")
    server.pipeline.service.register(service.owner_scope("author", mismatch="overwrite"), models=[Post])
    document = await described(server)

    assert codes(document, "post", "/api/notes", 503) == {"UNAVAILABLE"}
    assert "IDEMPOTENCY_KEY_REQUIRED" not in codes(document, "post", "/api/notes", 400)
    assert codes(document, "post", "/api/posts", 403) == set()
