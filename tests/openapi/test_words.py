"""The words of the document: a sentence for everything, names people know, only refusals that can come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import Field

from examples.blog.app import create_server
from maniflex import Context, Model, Server, WithDeletedAt, field
from maniflex._names import title_of_module
from tests.kit.described_app import durable_server, rich_server

SERVERS = {"rich": rich_server, "durable": durable_server, "blog": create_server}
OF_A_BODY = {"413", "415", "422"}


def described(server: Server) -> dict[str, Any]:
    return asyncio.run(server.openapi())


def sentences(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Where a sentence should be, and what is there."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            yield where, operation.get("description")
            for parameter in operation.get("parameters", ()):
                if "$ref" not in parameter:
                    yield f"{where} {parameter['name']}", parameter.get("description")
            if "requestBody" in operation:
                yield f"{where} body", operation["requestBody"].get("description")
            for status, answer in operation["responses"].items():
                yield f"{where} {status}", answer.get("description")
    components = document["components"]
    for kind in ("responses", "parameters", "headers"):
        for name, component in components[kind].items():
            yield f"{kind} {name}", component.get("description")


@pytest.mark.parametrize("make", SERVERS.values(), ids=SERVERS)
def test_every_operation_parameter_body_and_answer_has_a_sentence(make: Any) -> None:
    found = list(sentences(described(make())))

    assert len(found) > 100
    assert [where for where, text in found if not text] == []
    assert [(where, text) for where, text in found if "\n" not in text and not text.endswith(".")] == []


def test_an_action_without_a_body_lists_no_refusal_of_bodies() -> None:
    paths = described(rich_server())["paths"]

    assert set(paths["/api/things/first"]["get"]["responses"]).isdisjoint({*OF_A_BODY, "409"})
    assert set(paths["/api/old/{name}/{part}"]["delete"]["responses"]).isdisjoint(OF_A_BODY)
    assert set(paths["/api/orders"]["post"]["responses"]) >= OF_A_BODY
    assert set(paths["/api/things/{id}/restore"]["post"]["responses"]).isdisjoint(OF_A_BODY)


def test_routes_of_durable_work_list_the_refusals_they_have_and_no_others() -> None:
    paths = described(durable_server())["paths"]

    for path in ("workflow_run/{id}/cancel", "workflow_run/{id}/retry", "schedules/{id}/run"):
        assert set(paths[f"/api/{path}"]["post"]["responses"]).isdisjoint(OF_A_BODY), path
    for method, path in (("post", ""), ("patch", "/{id}"), ("put", "/{id}"), ("post", "/{id}/activate")):
        refusal = paths[f"/api/schedules{path}"][method]["responses"]["400"]["description"]
        assert "`INVALID_SCHEDULE`" in refusal, (method, path)


def test_an_action_says_which_refusals_its_handler_gives() -> None:
    server = Server()

    @server.action("POST", "/close", errors=[422, 423])
    async def close(ctx: Context) -> None:
        """Close the books."""

    responses = described(server)["paths"]["/api/close"]["post"]["responses"]

    assert {"422", "423"} <= responses.keys()
    assert "413" not in responses


def test_a_parameter_of_an_action_is_described_by_its_type() -> None:
    server = Server()
    loudly = Annotated[bool, Field(description="Whether everybody is told.")]

    @server.action("GET", "/call", query_params={"loud": loudly, "often": int})
    async def call(ctx: Context) -> None: ...

    operation = described(server)["paths"]["/api/call"]["get"]

    assert [p["description"] for p in operation["parameters"]] == [
        "Whether everybody is told.",
        "`often` of the query string.",
    ]
    assert operation["parameters"][0]["schema"] == {"type": "boolean"}


def test_a_locked_record_may_refuse_to_be_deleted_and_a_versioned_one_to_be_restored() -> None:
    class Invoice(Model, WithDeletedAt, restore=True, optimistic_lock=True):
        status: str = field(default="draft", lock_when={"status": "posted"})

    server = Server()
    server.register(Invoice)
    paths = described(server)["paths"]

    assert "`RECORD_LOCKED`" in paths["/api/invoices/{id}"]["delete"]["responses"]["422"]["description"]
    restore = paths["/api/invoices/{id}/restore"]["post"]
    assert "412" in restore["responses"]
    assert {"$ref": "#/components/parameters/If-Match"} in restore["parameters"]


class Zebra(Model): ...


class Ant(Model): ...


def test_groups_stand_in_the_order_of_registration_and_built_in_ones_come_last() -> None:
    server = durable_server()
    server.register(Zebra)

    @server.action("POST", "/jump", tags=["Yard"])
    async def jump(ctx: Context) -> None: ...

    @server.action("POST", "/sit", tags=["Barn"])
    async def sit(ctx: Context) -> None: ...

    server.register(Ant)
    document = described(server)

    names = [tag["name"] for tag in document["tags"]]
    own, others = ["Zebra", "Ant", "Yard", "Barn"], ["Runs", "Jobs", "Schedules", "Outbox"]
    assert names == [*own, *others, "Documentation", "Health"]
    assert all(tag["description"] for tag in document["tags"] if tag["name"] not in own)
    assert document["paths"]["/api/workflow_event"]["get"]["tags"] == ["Runs"]


def test_a_group_an_action_names_is_not_explained_by_us() -> None:
    server = Server()

    @server.action("POST", "/look", tags=["Search"])
    async def look(ctx: Context) -> None: ...

    assert described(server)["tags"][0] == {"name": "Search"}


def test_without_a_title_it_is_called_after_the_service_or_the_module() -> None:
    assert described(Server(openapi_title="Own", service_name="pages"))["info"]["title"] == "Own"
    assert described(Server(service_name="pages"))["info"]["title"] == "pages"
    assert described(Server())["info"]["title"] == "Test words"
    assert described(create_server())["info"]["title"] == "Blog"


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("shop", "Shop"),
        ("web_shop.app", "Web shop"),
        ("acme.shop.main", "Shop"),
        ("shop.__main__", "Shop"),
        ("app", ""),
        ("src.server", ""),
        ("", ""),
    ],
)
def test_a_module_gives_its_name_unless_it_is_called_like_any_other(name: str, title: str) -> None:
    assert title_of_module({"__name__": name}) == title


def test_a_script_gives_the_name_of_its_file() -> None:
    script = {"__name__": "__main__", "__spec__": None, "__file__": "/srv/web_shop.py"}

    assert title_of_module(script) == "Web shop"
    assert title_of_module({**script, "__file__": "/srv/app.py"}) == ""
