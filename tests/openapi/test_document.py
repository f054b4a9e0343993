"""The document itself: valid, complete, the same every time, and silent about secrets."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import date
from typing import Any, Literal

import pytest
from openapi_spec_validator import validate
from pydantic import BaseModel

from examples.blog.app import create_server
from maniflex import Context, Model, Next, Operation, Server, field
from maniflex.errors import InvalidQuery
from maniflex.query.operators import OPERATORS, Op, Takes
from maniflex.query.parse import parse
from tests.kit.described_app import Thing, rich_server
from tests.kit.fuzz.app import fuzzed_server

SERVERS = {"rich": rich_server, "blog": create_server, "fuzz": fuzzed_server}


def described(server: Server) -> dict[str, Any]:
    return asyncio.run(server.openapi())


@pytest.fixture(scope="module")
def rich() -> dict[str, Any]:
    return described(rich_server())


@pytest.mark.parametrize("make", SERVERS.values(), ids=SERVERS)
def test_the_document_is_valid_openapi_3_1(make: Any) -> None:
    document = described(make())

    validate(document)
    assert document["openapi"].startswith("3.1")


@pytest.mark.parametrize("make", SERVERS.values(), ids=SERVERS)
def test_every_mounted_route_is_described_and_no_other(make: Any) -> None:
    server = make()

    shown = {(m.upper(), path) for path, methods in described(server)["paths"].items() for m in methods}

    # Pages for people are no part of what is described.
    mounted = {(method, path) for method, path, owner in server.routes if owner not in ("docs", "welcome")}
    if not server.config.openapi_all_methods:
        mounted = {(method, path) for method, path in mounted if method not in ("HEAD", "OPTIONS")}
    assert shown == mounted


def test_an_operation_lists_the_codes_it_can_give_and_no_others(rich: dict[str, Any]) -> None:
    def codes(path: str, method: str) -> set[str]:
        responses = rich["paths"][path][method]["responses"]
        return {
            code for given in responses.values() for code in re.findall(r"`([A-Z_]+)`", given["description"])
        }

    assert {"INVALID_JSON", "VALIDATION_FAILED", "CONFLICT"} <= codes("/api/things", "post")
    assert codes("/api/things", "post").isdisjoint({"EXPORT_BUSY", "INVALID_SCHEDULE", "INVALID_QUERY"})
    assert "INVALID_QUERY" in codes("/api/things", "get")
    assert codes("/api/things", "get").isdisjoint({"INVALID_JSON", "EXPORT_BUSY", "RECORD_LOCKED"})
    assert {"EXPORT_BUSY", "EXPORT_TOO_LARGE"} <= codes("/api/things/export", "get")


def test_every_operation_of_a_model_says_what_it_does(rich: dict[str, Any]) -> None:
    silent = [
        f"{method} {path}"
        for path, methods in rich["paths"].items()
        for method, operation in methods.items()
        if path in ("/api/things", "/api/things/{id}") and not operation.get("description")
    ]
    assert silent == []
    assert rich["servers"] == [{"url": "/"}]


def test_an_action_stands_with_the_model_its_path_begins_with() -> None:
    server = rich_server()

    @server.action("POST", "/things/sort")
    async def sort(ctx: Context) -> None:
        """Nothing to do."""

    @server.action("POST", "/elsewhere")
    async def elsewhere(ctx: Context) -> None:
        """Nothing to do."""

    paths = described(server)["paths"]

    assert paths["/api/things/sort"]["post"]["tags"] == ["Thing"]
    assert paths["/api/elsewhere"]["post"]["tags"] == ["Actions"]


def test_two_servers_with_the_same_declarations_are_described_in_the_same_bytes() -> None:
    assert json.dumps(described(rich_server())) == json.dumps(described(rich_server()))


def test_operations_are_named_as_a_client_would_call_them(rich: dict[str, Any]) -> None:
    names = {
        f"{method} {path}": operation["operationId"]
        for path, methods in rich["paths"].items()
        for method, operation in methods.items()
    }

    assert names["get /api/things"] == "list_things"
    assert names["post /api/things"] == "create_thing"
    assert names["get /api/things/{id}"] == "get_thing"
    assert names["patch /api/things/{id}"] == "update_thing"
    assert names["delete /api/things/{id}"] == "delete_thing"
    assert names["get /api/settings"] == "get_setting"
    assert names["get /api/news"] == "list_news"
    assert names["post /api/orders"] == "place"
    assert names["get /api/things/export"] == "export_things"
    assert names["get /api/things/aggregate"] == "aggregate_things"
    assert names["post /api/things/{id}/restore"] == "restore_thing"
    assert len(set(names.values())) == len(names)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names.values())


def test_a_field_shows_its_rules_in_the_schemas_where_they_hold(rich: dict[str, Any]) -> None:
    schemas = rich["components"]["schemas"]
    record, create, update = (schemas[f"Thing{end}"] for end in ("", "Create", "Update"))

    assert create["properties"]["count"] == {
        "type": "integer",
        "format": "int64",
        "minimum": 0,
        "maximum": 1000,
        "default": 0,
    }
    assert create["required"] == ["name"]
    assert "required" not in update
    assert "default" not in update["properties"]["count"]
    assert record["properties"]["id"] == {"type": "string", "readOnly": True}
    assert record["properties"]["serial"]["readOnly"] is True
    assert record["properties"]["at"] == {"type": ["string", "null"], "format": "date-time"}
    assert record["properties"]["level"] == {"type": ["integer", "null"], "enum": [1, 2, 3, None]}
    assert record["properties"]["price"] == {"type": ["string", "null"], "format": "decimal"}
    assert record["properties"]["label"] == {"type": "string", "readOnly": True}
    assert create["properties"]["productCode"]["pattern"] == "^[a-z]{2,8}$"
    assert {"id", "serial", "created_at"}.isdisjoint(create["properties"])
    assert "origin" in create["properties"]
    assert "origin" not in update["properties"]


def test_relations_are_references(rich: dict[str, Any]) -> None:
    properties = rich["components"]["schemas"]["Thing"]["properties"]

    assert properties["shop"]["$ref"] == "#/components/schemas/Shop"
    assert properties["labels"]["items"] == {"$ref": "#/components/schemas/Label"}


def test_what_is_hidden_appears_nowhere_and_what_is_writeonly_only_in_bodies(rich: dict[str, Any]) -> None:
    schemas = rich["components"]["schemas"]

    assert "margin" not in json.dumps(rich)
    assert "pin" not in schemas["Thing"]["properties"]
    assert schemas["ThingCreate"]["properties"]["pin"]["writeOnly"] is True
    assert schemas["ThingUpdate"]["properties"]["pin"]["writeOnly"] is True
    rest = {name: s for name, s in schemas.items() if name not in ("ThingCreate", "ThingUpdate")}
    assert '"pin"' not in json.dumps([rest, rich["paths"]])


def test_no_default_or_lock_of_a_secret_is_described() -> None:
    class Safe(Model, aggregate=True, export=True):
        name: str = field(filterable=True, sortable=True, searchable=True)
        number: int = field(default=47114711, writeonly=True)
        word: str = field(default="swordfish", writeonly=True, lock_when={"word": "swordfish"})
        until: date = field(default=date(1999, 9, 9), writeonly=True)
        inner: int = field(default=47124712, hidden=True, lock_when={"inner": 47134713})
        state: Literal["dormant", "alert"] = field(default="dormant", hidden=True)

    server = Server(database=":memory:")
    server.register(Safe)

    @server.action("POST", "/safes/open", request=Safe, response=Safe)
    async def open_safe(ctx: Context) -> None:
        """Open a safe."""

    text = json.dumps(described(server))

    secrets = "47114711 47124712 47134713 swordfish 1999-09-09 dormant inner state"
    for secret in secrets.split():
        assert secret not in text, secret


def test_an_action_shows_its_types_and_a_model_in_them_by_reference(rich: dict[str, Any]) -> None:
    place = rich["paths"]["/api/orders"]["post"]
    first = rich["paths"]["/api/things/first"]["get"]
    old = rich["paths"]["/api/old/{name}/{part}"]["delete"]

    assert place["requestBody"]["content"]["application/json"]["schema"]["required"] == ["thing"]
    assert place["tags"] == ["Orders"]
    assert place["description"] == "Place an order."
    data = first["responses"]["200"]["content"]["application/json"]["schema"]["properties"]["data"]
    assert data == {"type": "array", "items": {"$ref": "#/components/schemas/Thing"}}
    [loud] = first["parameters"]
    assert (loud["name"], loud["in"], loud["schema"]) == ("loud", "query", {"type": "boolean"})
    assert old["deprecated"] is True
    assert [p["name"] for p in old["parameters"]] == ["name", "part"]


def test_a_type_called_like_a_model_gets_another_name() -> None:
    class Parcel(Model):
        weight: int

    def elsewhere() -> type[BaseModel]:
        class Parcel(BaseModel):
            colour: str

        return Parcel

    class Wrapped(BaseModel):
        parcel: elsewhere()  # type: ignore[valid-type]  # made on the spot to share its name

    async def wrap(ctx: Context) -> None:
        return None

    server = Server(":memory:")
    server.register(Parcel)
    server.action("POST", "/wrap", request=Wrapped)(wrap)

    schemas = described(server)["components"]["schemas"]

    assert set(schemas["Parcel"]["properties"]) >= {"id", "weight"}
    assert set(schemas["ParcelInput"]["properties"]) == {"colour"}


def test_a_versioned_record_asks_for_if_match_and_shows_its_etag(rich: dict[str, Any]) -> None:
    update = rich["paths"]["/api/things/{id}"]["patch"]

    assert {"$ref": "#/components/parameters/If-Match"} in update["parameters"]
    assert "412" in update["responses"]
    assert "ETag" in update["responses"]["200"]["headers"]
    assert "412" not in rich["paths"]["/api/shops/{id}"]["patch"]["responses"]


def test_refusals_of_the_auth_step_are_described_where_it_is_guarded() -> None:
    async def guard(ctx: Context, next: Next) -> None:
        await next()

    server = create_server()
    server.pipeline.auth.register(guard, operations=Operation.WRITES)
    paths = described(server)["paths"]

    assert {"401", "403"} <= paths["/api/posts"]["post"]["responses"].keys()
    assert {"401", "403"}.isdisjoint(paths["/api/posts"]["get"]["responses"])
    assert {"401", "403"}.isdisjoint(paths["/health"]["get"]["responses"])


VALUES = {
    "name": "a,b:c",
    "count": "5",
    "ratio": "-1.5e3",
    "active": "true",
    "price": "12.50",
    "at": "2026-01-31T12:00:00Z",
    "day": "2024-02-29",
    "clock": "12:30:00",
    "ref": "0190f5f0-6a5c-7b1e-8d3a-3f2b1c0d9e8f",
    "size": "m",
    "level": "2",
    "colour": "red",
    "shop.opened": "2026-12-31",
}


def spelled(name: str, op: Op) -> str:
    value = VALUES[name].replace(",", "")
    match OPERATORS[op].takes:
        case Takes.NOTHING:
            return f"{name}:{op}"
        case Takes.FIELD:
            return f"{name}:{op}:{name.rpartition('.')[2]}"
        case Takes.MANY | Takes.TWO:
            return f"{name}:{op}:{value},{value}"
        case _:
            return f"{name}:{op}:{VALUES[name]}"


@pytest.mark.parametrize("name", VALUES)
def test_the_pattern_of_filters_takes_what_the_parser_takes(name: str, rich: dict[str, Any]) -> None:
    pattern = re.compile(rich["components"]["schemas"]["ThingFilter"]["pattern"])
    server = rich_server()
    store = server.db(Thing)._store

    for op in OPERATORS:
        text = spelled(name, op)
        try:
            store.query(f"filter={text}".replace("+", "%2B").encode())
        except InvalidQuery:
            assert not pattern.search(text), text
        else:
            assert pattern.search(text), text


@pytest.mark.parametrize(
    "text",
    ["pin:eq:1", "margin:eq:3", "name", "name:eq", "name:foo:1", "count:eq:x", "count:like:1", "x:eq:1"],
)
def test_the_pattern_of_filters_refuses_what_the_parser_refuses(text: str, rich: dict[str, Any]) -> None:
    assert not re.search(rich["components"]["schemas"]["ThingFilter"]["pattern"], text)
    with pytest.raises(InvalidQuery):
        parse(f"filter={text}".encode(), rich_server().db(Thing)._store.meta)


def test_operators_are_listed_beside_the_fields_that_take_them(rich: dict[str, Any]) -> None:
    [parameter] = [p for p in rich["paths"]["/api/things"]["get"]["parameters"] if p["name"] == "filter"]
    lines = parameter["description"].splitlines()

    [numbers] = [line for line in lines if "`count`" in line]
    [texts] = [line for line in lines if "`name`" in line]
    assert "`gt`" in numbers
    assert "`like`" not in numbers
    assert "`contains`" in texts
    assert "pin" not in parameter["description"]


def test_so_many_names_that_a_pattern_would_be_endless_have_none() -> None:
    class Wide(Model):
        parent_id: str | None = field(filterable=True, relation="Wide")
        other_id: str | None = field(filterable=True, relation="Wide")
        third_id: str | None = field(filterable=True, relation="Wide")
        fourth_id: str | None = field(filterable=True, relation="Wide")

    server = Server(":memory:")
    server.register(Wide)
    document = described(server)

    assert "WideFilter" not in document["components"]["schemas"]
    [parameter] = [p for p in document["paths"]["/api/wides"]["get"]["parameters"] if p["name"] == "filter"]
    assert parameter["schema"]["items"] == {"type": "string"}
