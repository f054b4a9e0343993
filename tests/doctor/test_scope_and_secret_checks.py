"""Tenants and secrets: each planted fault is found under its code, and its mended twin is not."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from maniflex import AuthInfo, Context, Model, Next, Operation, Server, belongs_to, field
from maniflex.doctor.check import Severity
from maniflex.middleware import auth, db, service
from tests.kit.doctor import codes_of, declared, sound_server

# Read by the test below, which looks for it in this file.
WRITTEN = "a-secret-that-everybody-with-the-repository-has"
WRITTEN_KEY = "key-0123456789abcdef"


class Company(Model):
    name: str


class Ticket(Model):
    tenant_id: str = field(relation=None, filterable=True)
    title: str
    number: str = field(unique="tenant_id")


class Note(Model):
    tenant_id: str = field(relation=None, filterable=True)
    text: str


class Answer(Model):
    ticket_id: str = field(relation="Ticket")
    ticket: Ticket = belongs_to(key="ticket_id")
    text: str


class Slug(Model):
    tenant_id: str = field(relation=None)
    slug: str = field(unique=True)


def tenants(*models: Any, **tenancy: Any) -> Server:
    server = sound_server("sqlite:///:memory:", *models)
    models_of_rule = tenancy.pop("models", None)
    shared = tenancy.pop("shared", ["Leaflet"])
    server.pipeline.auth.register(db.tenancy(shared=() if models_of_rule else shared), models=models_of_rule)
    return server


async def test_a_model_with_the_column_that_is_not_bound_is_found() -> None:
    [finding] = await declared(tenants(Ticket, Note, models=[Ticket]))

    assert (finding.code, finding.severity) == ("T111", Severity.ERROR)
    assert finding.where.startswith("Note (tests/doctor/test_scope_and_secret_checks.py:")


async def test_bound_models_are_not_found() -> None:
    assert await declared(tenants(Ticket, Note)) == []
    assert await declared(tenants(Ticket, Note, models=[Ticket, Note])) == []


async def test_a_model_that_belongs_to_a_bound_one_is_found() -> None:
    [finding] = await declared(tenants(Ticket, Answer))

    assert finding.code == "T112"
    assert 'db.force_filter_via("ticket", "tenant_id"' in finding.fix


async def test_a_child_that_is_bound_or_shared_is_not() -> None:
    server = tenants(Ticket, Answer)
    value = db.force_filter_via("ticket", "tenant_id", lambda ctx: ctx.require_auth().tenant_id)
    server.pipeline.auth.register(value, models=[Answer])

    assert await declared(server) == []
    assert await declared(tenants(Ticket, Answer, shared=["Leaflet", "Answer"])) == []


async def test_a_model_without_tenants_is_shared() -> None:
    assert await declared(tenants(Ticket, Company)) == []


async def test_uniqueness_across_tenants_is_found() -> None:
    [finding] = await declared(tenants(Ticket, Slug))

    assert (finding.code, finding.severity) == ("T113", Severity.WARNING)
    assert finding.fix == 'slug: ... = field(unique="tenant_id")'


# -- secrets


def model_with(name: str, **options: Any) -> type[Model]:
    return type("Account", (Model,), {"__annotations__": {name: str}, name: field(**options)})


@pytest.mark.parametrize("name", ["password", "secret", "access_token", "api_key", "private_key"])
async def test_a_secret_that_answers_show_is_an_error(name: str) -> None:
    server = sound_server("sqlite:///:memory:", model_with(name))
    server.pipeline.service.register(service.hash_field(name), models=["Account"])

    [finding] = await declared(server)

    assert (finding.code, finding.severity) == ("T114", Severity.ERROR)
    assert finding.where.startswith(f"Account.{name}")


@pytest.mark.parametrize("name", ["ssn", "iban", "card_number"])
async def test_a_personal_number_is_a_warning(name: str) -> None:
    [finding] = await declared(sound_server("sqlite:///:memory:", model_with(name)))

    assert (finding.code, finding.severity) == ("T114", Severity.WARNING)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("token", {"hidden": True, "default": ""}),
        ("secret", {"writeonly": True}),
        ("token_count", {}),
        ("passwordless", {}),
    ],
)
async def test_what_is_hidden_or_no_secret_is_not_found(name: str, options: dict[str, Any]) -> None:
    assert await declared(sound_server("sqlite:///:memory:", model_with(name, **options))) == []


async def test_a_password_that_nothing_hashes_is_an_error() -> None:
    [finding] = await declared(sound_server("sqlite:///:memory:", model_with("password", writeonly=True)))

    assert (finding.code, finding.severity) == ("T115", Severity.ERROR)
    assert finding.fix == 'server.pipeline.service.register(service.hash_field("password"), models=[Account])'


async def test_own_middleware_may_hash_it_so_it_is_a_warning() -> None:
    async def hash_it(ctx: Context, next: Next) -> None:
        await next()

    server = sound_server("sqlite:///:memory:", model_with("password", writeonly=True))
    server.pipeline.service.register(hash_it, models=["Account"], operations=Operation.CREATE)

    assert [(f.code, f.severity) for f in await declared(server)] == [("T115", Severity.WARNING)]


async def test_a_hashed_password_is_not_found() -> None:
    server = sound_server("sqlite:///:memory:", model_with("password", writeonly=True))
    server.pipeline.service.register(service.hash_field("password"), models=["Account"])

    assert await declared(server) == []


async def test_a_short_secret_is_found() -> None:
    server = sound_server()
    server.pipeline.auth.register(auth.jwt(secrets.token_hex(8)))

    [finding] = await declared(server)

    assert (finding.code, finding.where) == ("T117", "auth.jwt")


async def test_a_secret_in_the_source_is_found_at_its_line() -> None:
    server = sound_server()
    server.pipeline.auth.register(auth.jwt(WRITTEN))

    [finding] = await declared(server)

    assert finding.code == "T118"
    assert finding.where.startswith("tests/doctor/test_scope_and_secret_checks.py:")
    assert WRITTEN not in finding.why + finding.fix + finding.where


async def test_a_key_in_the_source_is_found_though_only_its_digest_is_kept() -> None:
    server = sound_server()
    server.pipeline.auth.register(auth.api_keys(keys={WRITTEN_KEY: AuthInfo(user_id="robot")}))

    assert codes_of(await declared(server)) == ["T118"]


async def test_a_secret_from_elsewhere_is_not_found() -> None:
    server = sound_server()
    server.pipeline.auth.register(auth.jwt(secrets.token_urlsafe(32)))

    assert await declared(server) == []
