"""A guard whose condition is about a further model: its own model lacks the field."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from maniflex import Context, Model, Next, Server, field, has_many
from maniflex.model.registry import Registry
from maniflex.query.query import Forced, Query, adopt
from maniflex.testing import client
from tests.kit.http import data_of


class Club(Model, aggregate=True):
    name: str = field(default="club", filterable=True)
    vaults: list[Vault] = has_many()


class Vault(Model, aggregate=True, global_searchable=True):
    """Guarded; only its papers say whose they are."""

    name: str = field(default="vault", filterable=True, sortable=True, searchable=True)
    club_id: str = field(filterable=True)
    papers: list[Paper] = has_many()


class Paper(Model):
    tenant_id: str = field(filterable=True, relation=None)
    text: str = field(default="", filterable=True, sortable=True)
    vault_id: str = field(filterable=True)
    stamps: list[Stamp] = has_many()


class Stamp(Model):
    name: str = field(default="", filterable=True)
    paper_id: str = field(filterable=True)


class Meter(Model):
    """Further on, with a field of the same name that cannot have the value."""

    tenant_id: int = field(default=0, relation=None)
    stamp_id: str | None = field(default=None)


class Sheet(Model, global_searchable=True):
    """Related to nothing."""

    name: str = field(default="", searchable=True)


MODELS: tuple[type[Model], ...] = (Club, Vault, Paper, Stamp, Meter, Sheet)


def guarding(name: str) -> Server:
    server = Server()
    server.register(*MODELS)
    server.enable_global_search()

    @server.pipeline.auth.middleware(models=[Vault])
    async def bind(ctx: Context, next: Next) -> None:
        ctx.query.force(name, "red")
        await next()

    return server


async def furnish(server: Server) -> None:
    await server.db(Club).create(id="club")
    await server.db(Vault).create(id="vault", club_id="club")
    await server.db(Sheet).create(name="vault sheet")
    for tenant in ("red", "blue"):
        await server.db(Paper).create(id=tenant, tenant_id=tenant, text=f"{tenant} text", vault_id="vault")
        await server.db(Stamp).create(id=f"{tenant}-stamp", name=f"{tenant} stamp", paper_id=tenant)


WHERE = quote(
    json.dumps(
        {
            "select": [{"op": "count", "field": "id", "as": "n"}],
            "where": [{"field": "vaults.papers.text", "value": "blue text"}],
        }
    )
)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/vaults?include=papers", "red text"),
        ("/clubs?include=vaults.papers", "red text"),
        ("/clubs/club?include=vaults.papers", "red text"),
        ("/stamps?include=paper.vault", "red text"),
    ],
)
async def test_a_guard_binds_the_further_model_by_every_way(database_url: str, path: str, shown: str) -> None:
    server = guarding("tenant_id")
    async with client(server, database=database_url) as http:
        await furnish(server)
        answer = await http.get("/api" + path)

    assert answer.status_code == 200, answer.text
    assert shown in answer.text
    assert "blue text" not in answer.text


@pytest.mark.parametrize("path", ["/vaults?filter=papers.text:eq:", "/clubs?filter=vaults.papers.text:eq:"])
async def test_a_filter_finds_nothing_by_rows_of_the_further_model_outside(
    database_url: str, path: str
) -> None:
    server = guarding("tenant_id")
    async with client(server, database=database_url) as http:
        await furnish(server)
        ours = data_of(await http.get(f"/api{path}red%20text"))
        theirs = data_of(await http.get(f"/api{path}blue%20text"))
        [counted] = data_of(await http.get(f"/api/clubs/aggregate?aggregate={WHERE}"))

    assert (len(ours), theirs, counted["n"]) == (1, [], 0)


async def test_a_dotted_name_of_a_further_model_binds_it_too(database_url: str) -> None:
    server = guarding("paper.tenant_id")
    async with client(server, database=database_url) as http:
        await furnish(server)
        answer = await http.get("/api/papers?include=stamps,vault")

    assert "red stamp" in answer.text
    assert "blue stamp" not in answer.text


async def test_the_further_model_of_one_guard_leaves_a_search_of_other_models_alone(
    database_url: str,
) -> None:
    server = guarding("tenant_id")
    async with client(server, database=database_url) as http:
        await furnish(server)
        hits = data_of(await http.get("/api/search?q=vault"))

    assert sorted(hit["model"] for hit in hits) == ["Sheet", "Vault"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("tenant_id",),
        ("paper.tenant_id",),
        ("club.name",),
        ("name",),
        ("tenant_id", Paper),
        ("text", "Paper"),
    ],
)
def test_every_condition_that_is_taken_over_binds_a_model(arguments: tuple[Any, ...]) -> None:
    registry = Registry()
    registry.register(*MODELS)
    metas = {meta.name: meta for meta in registry.seal()}
    name, *model = arguments
    guard = Query(metas["Vault"], metas).with_force(name, "red", model=model[0] if model else None)

    scope = adopt((), guard)

    assert scope
    for condition in scope:
        assert isinstance(condition, Forced)
        assert [meta for meta in metas.values() if condition.binds(meta)]
