"""`ctx.recursive_query`: a record with everything below or above it, each once, inside the scope."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Context, InvalidQuery, Model, Next, Operation, Server, WithDeletedAt, field
from maniflex.testing import client


class Node(Model, WithDeletedAt):
    name: str = field(filterable=True)
    parent_id: str | None = field(default=None, relation=None)
    tenant: str = "a"
    size: int = 0
    tags: list[str] = field(default_factory=list)
    code: str = field(default="x", hidden=True)


class Tree:
    """A server whose one action walks a tree of nodes, which go by their names."""

    def __init__(self, *edges: str) -> None:
        self.edges = [edge.split("<") for edge in edges]
        self.server = Server()
        self.server.register(Node)
        self.ids: dict[str, str] = {}
        self.found: list[dict[str, Any]] = []
        self.ask: dict[str, Any] = {}
        self.deleted: list[str] = []
        self.tenants: dict[str, str] = {}

        @self.server.pipeline.service.middleware(
            models=[Node], operations=[Operation.LIST], params=["tenant"]
        )
        async def walk(ctx: Context, next: Next) -> None:
            if ctx.query_param("tenant"):
                ctx.query.force("tenant", ctx.query_param("tenant"))
            self.found = await ctx.recursive_query(Node, **{"parent_field": "parent_id", **self.ask})
            await next()

    async def walk(self, url: str, root: str, query: str = "", **ask: Any) -> dict[str, int]:
        """Name → depth of what a walk from `root` meets, in its order."""
        async with client(self.server, database=url) as http:
            nodes = self.server.db(Node)
            for child, parent in self.edges:
                for name in (child, parent):
                    if name and name not in self.ids:
                        tenant = self.tenants.get(name, "a")
                        self.ids[name] = (await nodes.create(name=name, tenant=tenant, tags=[name])).id
            for child, parent in self.edges:
                if parent:
                    await nodes.update(self.ids[child], parent_id=self.ids[parent])
            for name in self.deleted:
                await nodes.delete(self.ids[name])
            self.ask = {"root_id": self.ids.get(root, root), **ask}
            answer = await http.get(f"/api/nodes{query}")
            assert answer.status_code == 200, answer.text
        assert len({row["id"] for row in self.found}) == len(self.found)
        return {row["name"]: row["_depth"] for row in self.found}


def family() -> Tree:
    return Tree("a<", "b<a", "c<a", "d<b", "e<d", "other<")


async def test_descendants_come_nearest_first(database_url: str) -> None:
    tree = family()

    found = await tree.walk(database_url, "a")

    assert found == {"a": 0, "b": 1, "c": 1, "d": 2, "e": 3}
    assert list(found.values()) == sorted(found.values())
    siblings = [row["id"] for row in tree.found if row["_depth"] == 1]
    assert siblings == sorted(siblings)


async def test_rows_have_the_fields_a_client_may_see_by_attribute(database_url: str) -> None:
    tree = family()

    await tree.walk(database_url, "e")

    [row] = tree.found
    assert {"id", "name", "parent_id", "tags", "created_at", "_depth"} <= set(row)
    assert "code" not in row
    assert (row["tags"], row["created_at"].tzinfo is not None) == (["e"], True)


async def test_ancestors_lead_up_to_the_root(database_url: str) -> None:
    assert await family().walk(database_url, "e", direction="ancestors") == {"e": 0, "d": 1, "b": 2, "a": 3}


@pytest.mark.parametrize(("direction", "found"), [("descendants", "ab c"), ("ancestors", "a")])
async def test_depth_can_be_bounded(database_url: str, direction: str, found: str) -> None:
    walked = await family().walk(database_url, "a", direction=direction, max_depth=1)

    assert set(walked) == set(found.replace(" ", ""))


async def test_without_a_bound_a_walk_ends_after_a_hundred_levels(database_url: str) -> None:
    line = ["n0<", *(f"n{i + 1}<n{i}" for i in range(120))]

    assert len(await Tree(*line).walk(database_url, "n0")) == 101
    assert len(await Tree(*line).walk(database_url, "n0", max_depth=10_000)) == 121


@pytest.mark.parametrize("direction", ["descendants", "ancestors"])
@pytest.mark.parametrize("root", ["a", "b", "tail"])
async def test_a_circle_ends_and_every_record_comes_once(
    database_url: str, direction: str, root: str
) -> None:
    tree = Tree("a<c", "b<a", "c<b", "tail<a", "self<self")

    found = await tree.walk(database_url, root, direction=direction, max_depth=1000)

    if root == "tail":
        down, up = {"tail": 0}, {"tail": 0, "a": 1, "c": 2, "b": 3}
    elif root == "a":
        down, up = {"a": 0, "b": 1, "tail": 1, "c": 2}, {"a": 0, "c": 1, "b": 2}
    else:
        down, up = {"b": 0, "c": 1, "a": 2, "tail": 3}, {"b": 0, "a": 1, "c": 2}
    assert found == (down if direction == "descendants" else up)


async def test_a_record_that_is_its_own_parent_comes_once(database_url: str) -> None:
    assert await Tree("a<a").walk(database_url, "a") == {"a": 0}
    assert await Tree("a<a").walk(database_url, "a", direction="ancestors") == {"a": 0}


async def test_a_walk_does_not_go_through_what_the_condition_leaves_out(database_url: str) -> None:
    where = [("name", "neq", "b")]

    assert await family().walk(database_url, "a", where=where) == {"a": 0, "c": 1}
    assert await family().walk(database_url, "e", direction="ancestors", where=where) == {"e": 0, "d": 1}
    assert await family().walk(database_url, "b", where=where) == {}


async def test_a_walk_does_not_go_through_deleted_records(database_url: str) -> None:
    tree = family()
    tree.deleted = ["b"]

    assert await tree.walk(database_url, "a") == {"a": 0, "c": 1}


async def test_a_walk_does_not_leave_the_scope_of_the_request(database_url: str) -> None:
    tree = family()
    tree.tenants = {"b": "b"}

    assert await tree.walk(database_url, "a", "?tenant=a") == {"a": 0, "c": 1}


async def test_a_foreign_root_is_as_one_that_is_not_there(database_url: str) -> None:
    tree = family()
    tree.tenants = {"b": "b"}
    assert await tree.walk(database_url, "b", "?tenant=a") == {}


async def test_a_root_that_is_not_there_has_no_tree(database_url: str) -> None:
    assert await family().walk(database_url, "nothing") == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"parent_field": "parent"},
        {"parent_field": "size"},
        {"parent_field": None},
        {"direction": "sideways"},
        {"max_depth": -1},
        {"max_depth": 10_001},
        {"max_depth": 1.5},
        {"where": [("nothing", 1)]},
        {"where": [("name", "==", "a")]},
        {"where": "name"},
    ],
    ids=str,
)
async def test_a_walk_that_cannot_be_meant_is_refused(database_url: str, wrong: dict[str, Any]) -> None:
    server = Server()
    server.register(Node)
    refused: list[str] = []

    @server.action("GET", "/walk")
    async def walk(ctx: Context) -> None:
        try:
            await ctx.recursive_query(Node, **{"root_id": "x", "parent_field": "parent_id", **wrong})
        except InvalidQuery as error:
            refused.append(error.message)

    async with client(server, database=database_url) as http:
        assert (await http.get("/api/walk")).status_code == 204

    assert len(refused) == 1
