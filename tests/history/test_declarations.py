"""H1: what a versioned model declares, what stops the start, and what the description says."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import DeclarationError, Model, ModelOptions, Server, field
from maniflex.testing import client
from tests.history.world import a_world


def seal(*models: Any) -> Server:
    server = Server("sqlite:///:memory:", path_prefix="")
    server.register(*models)
    server.seal()
    return server


def problems(*models: Any) -> tuple[str, ...]:
    with pytest.raises(DeclarationError) as error:
        seal(*models)
    return error.value.problems


def paths(server: Server) -> set[str]:
    return {path for _, path, _ in server.routes if "istor" in path}


class Post(Model):
    title: str = ""


def test_options_at_the_registration_do_the_same_as_keywords() -> None:
    for options in (ModelOptions(versioned=True), ModelOptions(versioned_diff_only=True)):
        assert paths(seal(Post, options)) == {
            "/posts/{id}/history",
            "/posts/{id}/history/{version}",
            "/post_histories",
            "/post_histories/{id}",
        }
    assert paths(seal(Post)) == set()


def test_the_table_the_list_and_the_way_back_can_be_chosen() -> None:
    options = ModelOptions(versioned=True, history_table="post_log", history_list=False, history_restore=True)
    server = seal(Post, options)
    assert paths(server) == {
        "/posts/{id}/history",
        "/posts/{id}/history/{version}",
        "/posts/{id}/history/{version}/restore",
    }
    assert server._seal().runtime.store("PostHistory").meta.table == "post_log"
    listed = seal(Post, ModelOptions(versioned=True, history_table="post_log"))
    assert "/post_log" in {path for _, path, _ in listed.routes}


def test_a_headless_model_keeps_a_history_without_routes() -> None:
    server = seal(Post, ModelOptions(versioned=True, headless=True))
    assert paths(server) == set()
    assert server._seal().runtime.store("PostHistory").meta.table == "post_histories"


def test_operations_decide_on_the_routes_of_histories_too() -> None:
    assert paths(seal(Post, ModelOptions(versioned=True, operations=["create"]))) == set()
    assert paths(seal(Post, ModelOptions(versioned=True, operations=["list"]))) == {
        "/post_histories",
        "/post_histories/{id}",
    }
    of_one = {"/posts/{id}/history", "/posts/{id}/history/{version}"}
    assert paths(seal(Post, ModelOptions(versioned=True, operations=["read"]))) == of_one


def test_mistakes_stop_the_start() -> None:
    class PostHistory(Model, table="other"):
        title: str = ""

    class Report(Model, query="SELECT 1 AS n", versioned=True):
        n: int

    class Log(Model, table="post_histories"):
        title: str = ""

    class Reader(Model):
        seen_id: str = field(relation="PostHistory")

    versioned = ModelOptions(versioned=True)
    assert any("PostHistory: two models have this name" in p for p in problems(Post, versioned, PostHistory))
    assert any("shares the table 'post_histories'" in p for p in problems(Post, versioned, Log))
    assert any("versioned cannot be set on a query model" in p for p in problems(Report))
    assert problems(Post, ModelOptions(history_list=False)) == (
        "Post: history_list= means nothing without versioned=True",
    )
    assert any(
        "history_table" in p or "cannot name a table" in p
        for p in problems(Post, ModelOptions(versioned=True, history_table="a b"))
    )
    assert any("no model refers to PostHistory" in p for p in problems(Post, versioned, Reader))
    assert any("versioned must be True or False" in p for p in problems(Post, ModelOptions(versioned="yes")))  # type: ignore[arg-type]


async def test_a_history_binds_no_other_model_by_its_own_columns(database_url: str) -> None:
    """`tenant_id` of a history is that of its author; it must not make a model look bound."""
    server = Server(path_prefix="")
    server.register(Post, ModelOptions(versioned=True))

    @server.pipeline.auth.middleware()
    async def bind(ctx: Any, next: Any) -> None:
        ctx.query.force("tenant_id", "a")
        await next()

    async with client(server, database=database_url) as http:
        await server.db(Post).create(title="of all")
        for path in ("/posts", "/post_histories"):
            assert (await http.get(path)).status_code == 500, path


async def test_every_route_is_described_and_the_other_way_round(sqlite_url: str) -> None:
    async with a_world(sqlite_url) as world:
        document = await world.server.openapi()
        mounted = {
            (path, method.lower())
            for method, path, _ in world.server.routes
            if "istor" in path and method not in ("HEAD", "OPTIONS")
        }
        described = {
            (path, method)
            for path, item in document["paths"].items()
            if "istor" in path
            for method in item
            if method not in ("head", "options")
        }
        assert described == mounted
        row = document["components"]["schemas"]["InvoiceHistory"]["properties"]
        assert row["diff"]["type"] == "object"
        assert "object" in str(row["snapshot"])
        assert "subject_id" not in row
        for path, is_taken in (
            ("/hist_invoices", True),
            ("/hist_invoices/{id}", True),
            ("/hist_ledger", False),
            ("/hist_ledger/{id}", True),
            ("/hist_plain", False),
        ):
            names = {p.get("name") for p in document["paths"][path]["get"].get("parameters", ())}
            assert ("as_of" in names) == is_taken, path
        listed = document["paths"]["/hist_invoices/{id}/history"]["get"]
        assert {"200", "400", "404"} <= listed["responses"].keys()
