"""A model is bound by its create rules wherever it stands in the type of a request."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypeVar, Union

import httpx
import pydantic
import pytest
from pydantic import AfterValidator, BaseModel, BeforeValidator, Discriminator, Field, RootModel, Tag
from pydantic import model_validator as pydantic_model_validator
from typing_extensions import TypeAliasType, TypedDict

from maniflex import Context, Model, Server, field
from maniflex.pipeline.binding import binder
from maniflex.testing import client
from tests.kit.http import offenders

T = TypeVar("T")
CLOSED = {
    "id": "chosen",
    "role": "admin",
    "key": "stolen",
    "created_at": "2001-01-01T00:00:00Z",
    "updated_at": "2001-01-01T00:00:00Z",
    "deleted_at": "2001-01-01T00:00:00Z",
    "name": "by attribute",
    "nobody": 1,
}
OPEN = {"fullName": "Ada", "email": "ada@example.org", "settings": {"a": [1, 2.5]}}


class Member(Model, soft_delete=True):
    name: str = field(min_length=2, alias="fullName")
    email: str = field(immutable=True)
    role: str = field(default="user", readonly=True)
    key: str = field(default="k", hidden=True)
    settings: dict[str, Any] = field(default_factory=dict)
    balance: Decimal = field(default=Decimal(0))


class Guest(Model, soft_delete=True):
    """A model that no server knows; its validators see what the route would give them."""

    name: str = field(min_length=2, alias="fullName")
    email: str = field(immutable=True)
    role: str = field(default="user", readonly=True)
    key: str = field(default="k", hidden=True)
    settings: dict[str, Any] = field(default_factory=dict)

    @pydantic_model_validator(mode="wrap")
    @classmethod
    def watch(cls, values: Any, handler: Callable[[Any], Any]) -> Any:
        assert not {"id", "role", "key", "fullName"} & set(values), values
        return handler(values)

    @pydantic_model_validator(mode="after")
    def keep(self) -> Guest:
        return self


class Team(BaseModel):
    lead: Member
    members: list[Member] = []


class Node(BaseModel):
    member: Member
    children: list[Node] = []


class Boxed(BaseModel, Generic[T]):
    item: T


class Later(BaseModel):
    item: ForwardMember


ForwardMember = Member


@dataclasses.dataclass
class Plain:
    item: Member
    note: str = ""


@pydantic.dataclasses.dataclass
class Checked:
    item: Member


class Point(NamedTuple):
    item: Member
    note: str = ""


class Entry(TypedDict):
    item: Member


class Cat(BaseModel):
    kind: Literal["cat"]
    owner: Member


class Dog(BaseModel):
    kind: Literal["dog"]
    owner: Member


class Holder(BaseModel):
    """Complete before any request, so pydantic has a validator of its own for it."""

    deep: dict[str, list[Boxed[Member | None]]]


Holder.model_validate({"deep": {}})
Alias = TypeAliasType("Alias", list[Member])
ONE = {**OPEN, **CLOSED}


def _kind(value: Any) -> str:
    return "member" if isinstance(value, dict) else "text"


TYPES: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "model": (Member, ONE, lambda v: v),
    "unregistered model": (Guest, ONE, lambda v: v),
    "list of unregistered models": (list[Guest], [ONE], lambda v: v[0]),
    "list": (list[Member], [ONE], lambda v: v[0]),
    "tuple": (tuple[Member, int], [ONE, 1], lambda v: v[0]),
    "endless tuple": (tuple[Member, ...], [ONE], lambda v: v[0]),
    "deque": (deque[Member], [ONE], lambda v: v[0]),
    "sequence": (Sequence[Member], [ONE], lambda v: v[0]),
    "optional": (Member | None, ONE, lambda v: v),
    "typing.Optional": (Optional[Member], ONE, lambda v: v),  # noqa: UP045  # what is meant
    "union": (Member | int, ONE, lambda v: v),
    "typing.Union": (Union[int, Member], ONE, lambda v: v),  # noqa: UP007  # what is meant
    "union of holders": (Plain | Team, {"lead": ONE}, lambda v: v.lead),
    "dict": (dict[str, Member], {"a": ONE}, lambda v: v["a"]),
    "mapping": (Mapping[str, Member], {"a": ONE}, lambda v: v["a"]),
    "dict of lists": (dict[str, list[Member]], {"a": [ONE]}, lambda v: v["a"][0]),
    "annotated": (Annotated[Member, "doc"], ONE, lambda v: v),
    "annotated inside": (list[Annotated[Member, "doc"]], [ONE], lambda v: v[0]),
    "annotated with rules": (Annotated[list[Member], Field(max_length=3)], [ONE], lambda v: v[0]),
    "after a validator": (Annotated[Member, AfterValidator(lambda m: m)], ONE, lambda v: v),
    "before a validator": (
        Annotated[Member, BeforeValidator(lambda texts: dict(texts))],
        [[key, value] for key, value in ONE.items()],
        lambda v: v,
    ),
    "pydantic model": (Team, {"lead": ONE, "members": [ONE]}, lambda v: v.members[0]),
    "pydantic model's first": (Team, {"lead": ONE}, lambda v: v.lead),
    "recursive": (
        Node,
        {"member": ONE, "children": [{"member": ONE, "children": [{"member": ONE}]}]},
        lambda v: v.children[0].children[0].member,
    ),
    "generic": (Boxed[Member], {"item": ONE}, lambda v: v.item),
    "generic of a list": (Boxed[list[Member]], {"item": [ONE]}, lambda v: v.item[0]),
    "forward reference": (Later, {"item": ONE}, lambda v: v.item),
    "dataclass": (Plain, {"item": ONE}, lambda v: v.item),
    "list of dataclasses": (list[Plain], [{"item": ONE}], lambda v: v[0].item),
    "pydantic dataclass": (Checked, {"item": ONE}, lambda v: v.item),
    "named tuple": (Point, {"item": ONE}, lambda v: v.item),
    "typed dict": (Entry, {"item": ONE}, lambda v: v["item"]),
    "root model": (RootModel[list[Member]], [ONE], lambda v: v.root[0]),
    "alias of a type": (Alias, [ONE], lambda v: v[0]),
    "complete holder": (Holder, {"deep": {"a": [{"item": ONE}]}}, lambda v: v.deep["a"][0].item),
    "list of complete holders": (
        list[Holder],
        [{"deep": {"a": [{"item": ONE}]}}],
        lambda v: v[0].deep["a"][0].item,
    ),
    "tagged union": (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        {"kind": "dog", "owner": ONE},
        lambda v: v.owner,
    ),
    "called discriminator": (
        Annotated[Annotated[Member, Tag("member")] | Annotated[str, Tag("text")], Discriminator(_kind)],
        ONE,
        lambda v: v,
    ),
}


def test_there_are_at_least_twenty_types() -> None:
    assert len(TYPES) >= 20


@pytest.mark.parametrize("name", TYPES)
async def test_nothing_closed_is_assigned_in_any_type(name: str) -> None:
    wanted, body, pick = TYPES[name]
    bound: list[Any] = []
    server = Server()
    server.register(Member)

    @server.action("POST", "/declared", request=wanted)
    async def declared(ctx: Context) -> None:
        bound.append(pick(ctx.body))

    @server.action("POST", "/bound")
    async def by_hand(ctx: Context) -> None:
        bound.append(pick(await ctx.bind_json(wanted)))

    async with client(server) as http:
        for path in ("/api/declared", "/api/bound"):
            answer = await http.post(path, json=body)
            assert answer.status_code == 204, answer.text

    for record in bound:
        assert isinstance(record, Model)
        values: Any = record
        assert (values.role, values.key, values.deleted_at) == ("user", "k", None)
        assert values.id != "chosen"
        assert 2001 not in (values.created_at.year, values.updated_at.year)
        assert (values.name, values.email) == ("Ada", "ada@example.org")
        assert values.settings == {"a": [1, 2.5]}
        assert type(values.settings["a"][1]) is float


async def test_what_a_list_brings_is_stored_without_what_is_closed(database_url: str) -> None:
    server = Server()
    server.register(Member)

    @server.action("POST", "/import", request=list[Member])
    async def take(ctx: Context) -> list[Member]:
        return [await ctx.db(Member).create(member) for member in ctx.body]

    async with client(server, database=database_url) as http:
        made = (await http.post("/api/import", json=[ONE, OPEN])).json()["data"]
        stored = [await server.db(Member).read(record["id"]) for record in made]

    assert [(m.role, m.key, m.name) for m in stored] == [("user", "k", "Ada")] * 2
    assert "chosen" not in [m.id for m in stored]


@pytest.mark.parametrize(
    ("wanted", "body", "expected"),
    [
        (Member, {"fullName": "A"}, {"fullName": "min_length", "email": "required"}),
        (list[Member], [OPEN, {"email": 3}], {"1.fullName": "required", "1.email": "type"}),
        (list[Member], [3], {"0": "model_type"}),
        (dict[str, Member], {"a": {"fullName": "Ada"}}, {"a.email": "required"}),
        (Team, {"lead": OPEN, "members": [{"fullName": "Ada"}]}, {"members.0.email": "required"}),
        (Boxed[list[Member]], {"item": [{}]}, {"item.0.fullName": "required", "item.0.email": "required"}),
        (
            list[Member | int],
            [{"email": "a", "fullName": "A"}],
            {"0.Member.fullName": "min_length", "0.int": "type"},
        ),
    ],
)
async def test_every_offending_field_is_named_by_its_path(
    wanted: Any, body: Any, expected: dict[str, str]
) -> None:
    server = Server()
    server.register(Member)

    @server.action("POST", "/check", request=wanted)
    async def check(ctx: Context) -> None: ...

    async with client(server) as http:
        answer = await http.post("/api/check", json=body)

    assert offenders(answer) == expected
    for detail in answer.json()["error"]["details"]:
        assert "function" not in detail["field"]
        if expected[detail["field"]] in ("required", "min_length"):
            assert f'"{detail["field"]}"' in detail["message"]


async def test_a_type_is_prepared_once_for_all_requests() -> None:
    inline = [binder(list[Member]), binder(list[Member])]
    stable = Annotated[list[Member], Field(max_length=3)]

    assert inline[0] is inline[1]
    assert binder(stable) is binder(stable)


async def test_binding_a_holder_leaves_the_holder_itself_as_it_was() -> None:
    binder(Holder).bind(b'{"deep": {}}')

    made = Holder.model_validate({"deep": {"a": [{"item": {"id": "mine", "name": "Ada", "email": "e"}}]}})
    item = made.deep["a"][0].item

    assert item is not None
    assert item.id == "mine"
    assert vars(Holder)["__pydantic_complete__"]


async def test_a_body_that_is_no_object_is_refused_for_a_model() -> None:
    server = Server()

    @server.action("POST", "/check", request=Member)
    async def check(ctx: Context) -> None: ...

    async with client(server) as http:
        answer: httpx.Response = await http.post("/api/check", json=[1])

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "INVALID_JSON"
