"""No shape an application answers with writes a hidden or a writeonly field, on any surface."""

from __future__ import annotations

import dataclasses
import itertools
import json
import types
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import httpx
import msgspec
import pydantic
import pytest
from fastapi import FastAPI
from fastapi.encoders import jsonable_encoder
from pydantic import BaseModel, ConfigDict, RootModel, TypeAdapter, computed_field
from pydantic_core import to_json, to_jsonable_python
from typing_extensions import TypedDict

from maniflex import Context, Model, Next, Operation, Server, field, has_many
from maniflex.testing import client

SECRETS = ("the-password", "the-token", "the-hash")
T = TypeVar("T")


class Team(Model):
    name: str
    invite: str = field(writeonly=True)
    users: list[User] = has_many()


class User(Model, export=True):
    name: str = field(alias="fullName")
    password: str = field(writeonly=True)
    token: str | None = field(hidden=True, default="the-token")
    team_id: str | None = field(default=None)

    def __hash__(self) -> int:
        return hash(self.id)


class Badge(Model):
    """Shares its field names with `User`, and keeps other ones secret."""

    name: str = field(hidden=True, default="the-hash")
    password: str = field(default="shown")


class Stranger(Model):
    """A model that is not registered."""

    name: str
    password: str = field(writeonly=True)


class Point(NamedTuple):
    user: Any


class Entry(TypedDict):
    user: User


@dataclasses.dataclass
class Plain:
    user: Any


@dataclasses.dataclass(slots=True, frozen=True)
class Slotted:
    user: Any


@pydantic.dataclasses.dataclass
class Checked:
    user: User


class Packed(msgspec.Struct):
    user: Any


class Typed(BaseModel):
    user: User


class Anything(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    value: Any


class Boxed(BaseModel, Generic[T]):
    item: T


class Deep(BaseModel):
    boxes: dict[str, list[Boxed[User]]]


class Several(BaseModel):
    users: tuple[User, ...]
    queue: deque[User]
    holder: Plain
    either: User | None = None
    entry: Entry | None = None
    frozen: frozenset[User] = frozenset()


class Derived(BaseModel):
    users: list[User] = pydantic.Field(exclude=True)

    @computed_field  # type: ignore[prop-decorator]  # mypy has no decorated properties
    @property
    def first(self) -> User:
        return self.users[0]

    @computed_field  # type: ignore[prop-decorator]  # mypy has no decorated properties
    @property
    def each(self) -> Any:
        return (user for user in self.users)


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")


class Members(Mapping[str, Any]):
    def __init__(self, users: Sequence[Any]) -> None:
        self._users = {user.id: user for user in users}

    def __getitem__(self, key: str) -> Any:
        return self._users[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._users)

    def __len__(self) -> int:
        return len(self._users)


class Walk:
    """Iterable, and nothing else."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)


def _same(user: Any) -> Any:
    return user


def _user(**values: Any) -> Any:
    """A user that is `Any` to the type checker, for which a model has no `model_dump`."""
    return User(**values)


SHAPES: dict[str, Callable[[list[Any]], Any]] = {
    "record": lambda users: users[0],
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "generator": lambda users: (user for user in users),
    "iterator": iter,
    "map": lambda users: map(_same, users),
    "filter": lambda users: filter(None, users),
    "chain": lambda users: itertools.chain(users, users),
    "islice": lambda users: itertools.islice(users, 5),
    "zip": lambda users: zip(users, users, strict=True),
    "enumerate": enumerate,
    "reversed": reversed,
    "nested generators": lambda users: ((user for user in [one]) for one in users),
    "dict": lambda users: {user.id: user for user in users},
    "dict values": lambda users: {user.id: user for user in users}.values(),
    "dict items": lambda users: {user.id: user for user in users}.items(),
    "dict of generators": lambda users: {"users": (user for user in users)},
    "dict of the record": lambda users: dict(users[0]),
    "ordered dict": lambda users: OrderedDict(user=users[0]),
    "default dict": lambda users: defaultdict(list, users=users),
    "chain map": lambda users: ChainMap({"user": users[0]}, {}),
    "user dict": lambda users: UserDict(user=users[0]),
    "user list": UserList,
    "mapping proxy": lambda users: types.MappingProxyType({"user": users[0]}),
    "mapping of the application": Members,
    "iterable of the application": Walk,
    "counter keys": lambda users: Counter(users).keys(),
    "named tuple": lambda users: Point(users[0]),
    "typed dict": lambda users: Entry(user=users[0]),
    "dataclass": lambda users: Plain(users[0]),
    "dataclass of a generator": lambda users: Plain(user for user in users),
    "dataclass with slots": lambda users: Slotted(users),
    "pydantic dataclass": lambda users: Checked(users[0]),
    "struct": lambda users: Packed(users),
    "pydantic model": lambda users: Typed(user=users[0]),
    "pydantic model of a dataclass": lambda users: Anything(value=Plain(users[0])),
    "pydantic model of a deque": lambda users: Anything(value=deque(users)),
    "pydantic model of a generator": lambda users: Anything(value=(user for user in users)),
    "pydantic model of a map": lambda users: Anything(value=map(_same, users)),
    "pydantic model of dict values": lambda users: Anything(value={"a": users[0]}.values()),
    "pydantic model of a pydantic model": lambda users: Anything(value=Typed(user=users[0])),
    "pydantic model of a struct": lambda users: Anything(value=Packed(users)),
    "pydantic model of a named tuple": lambda users: Anything(value=Point(users[0])),
    "pydantic model with extras": lambda users: Extra.model_validate({"user": users[0], "users": users}),
    "computed fields": lambda users: Derived(users=users),
    "many typed fields": lambda users: Several(
        users=tuple(users),
        queue=deque(users),
        holder=Plain(users[0]),
        either=users[0],
        entry=Entry(user=users[0]),
        frozen=frozenset(users),
    ),
    "generic model": lambda users: Boxed[User](item=users[0]),
    "deep generic models": lambda users: Deep(boxes={"a": [Boxed[User](item=users[0])]}),
    "root model": lambda users: RootModel[list[User]](users),
    "root model of a dict": lambda users: RootModel[dict[str, User]]({"a": users[0]}),
    "list of root models": lambda users: [RootModel[User](users[0])],
    "adapter dump": lambda users: TypeAdapter(list[User]).dump_python(users, by_alias=True),
    "adapter of anything": lambda users: TypeAdapter(Any).dump_python(users, by_alias=True),
    "annotated adapter": lambda users: TypeAdapter(Annotated[User, "x"]).dump_python(users[0]),
    "jsonable": lambda users: to_jsonable_python(users),
    "json text": lambda users: to_json(users).decode(),
    "model_dump": lambda users: users[0].model_dump(),
    "model_dump of secrets": lambda users: [
        users[0].model_dump(include={"name", "password", "token"}),
        users[0].model_dump(round_trip=True, serialize_as_any=True),
    ],
    "model_dump_json": lambda users: users[0].model_dump_json(),
    "fastapi's encoder": lambda users: jsonable_encoder(users),
    "copies": lambda users: [user.model_copy(update={"name": "visible"}) for user in users],
    "repr": lambda users: [repr(users), str(users[0]), f"{users[0]!r:.2000}"],
    "repr of a holder": lambda users: repr(Anything(value=[Plain(users[0])])),
}


def test_there_are_more_than_forty_shapes() -> None:
    assert len(SHAPES) > 40


def _answer_is_clean(answer: Any) -> None:
    assert answer.status_code == 200, answer.text
    assert "visible" in answer.text, answer.text
    for secret in SECRETS:
        assert secret not in answer.text, answer.text


class _Surfaces:
    """A server on which `shape` decides what every surface answers with."""

    def __init__(self) -> None:
        self.shape: Callable[[list[Any]], Any] = list
        self.server = server = Server()
        server.register(User, Team, Badge)

        @server.action("GET", "/shown")
        async def action(ctx: Context) -> Any:
            users = await ctx.db(User).list(include="team")
            assert (users[0].password, users[0].token) == ("the-password", "the-token")
            return self.shape(users)

        @server.action("GET", "/streamed")
        async def streamed(ctx: Context) -> AsyncIterator[Any]:
            for user in await ctx.db(User).list():
                yield self.shape([user])

        @server.computed(Team, "extra")
        async def extra(ctx: Context, team: Team) -> Any:
            return self.shape(await ctx.db(User).list())

        @server.pipeline.db.middleware(models=[User], operations=Operation.READS, at="after")
        async def replace(ctx: Context, next: Next) -> None:
            users = await server.db(User).list()
            ctx.result = self.shape(users)
            await next()


async def test_no_surface_writes_a_secret_in_any_shape(database_url: str) -> None:
    surfaces = _Surfaces()
    async with client(surfaces.server, database=database_url) as http:
        made = await http.post("/api/teams", json={"name": "visible", "invite": "the-hash"})
        team = made.json()["data"]["id"]
        for _ in range(2):
            body = {"fullName": "visible", "password": "the-password", "team_id": team}
            made = await http.post("/api/users", json=body)
            assert made.status_code == 201, made.text
            user = made.json()["data"]["id"]
        for name, shape in SHAPES.items():
            surfaces.shape = shape
            for path in (
                "/api/shown",
                "/api/streamed",
                f"/api/teams/{team}",
                f"/api/teams/{team}?include=users",
                "/api/teams?include=users",
                "/api/users",
                "/api/users?select=fullName",
                f"/api/users/{user}",
                f"/api/users/{user}?include=team",
            ):
                answer = await http.get(path)
                assert answer.status_code == 200, (name, path, answer.text)
                if "teams" in path and "extra" not in answer.text:
                    pytest.fail(f"the computed field of {path} is missing for {name}")
                _answer_is_clean(answer)
            exported = await http.get("/api/users/export")
            # Only records have rows; what holds them otherwise has none, or is no list at all.
            assert exported.status_code == 200 or name not in ("list", "generator", "map", "dict values")
            assert "visible" in exported.text or name not in ("list", "generator", "map", "dict values")
            assert not any(secret in exported.text for secret in SECRETS), name


@pytest.mark.parametrize("place", ["read", "list", "export"])
async def test_a_record_of_another_model_is_shown_by_its_own_rules(database_url: str, place: str) -> None:
    server = Server()
    server.register(User, Team, Badge)

    @server.pipeline.db.middleware(models=[User], operations=Operation.READS, at="after")
    async def swap(ctx: Context, next: Next) -> None:
        badge = Badge(password="visible")
        if place == "read":
            ctx.result = badge
        else:
            ctx.result.items[:] = [badge]
        await next()

    async with client(server, database=database_url) as http:
        body = {"fullName": "visible", "password": "the-password"}
        made = (await http.post("/api/users", json=body)).json()["data"]
        path = {"read": f"/api/users/{made['id']}", "list": "/api/users", "export": "/api/users/export"}
        answer = await http.get(path[place])

    assert answer.status_code == 200 or place == "export", answer.text
    assert "the-hash" not in answer.text
    assert ("visible" in answer.text) == (place != "export")


async def test_a_record_of_an_unregistered_model_keeps_its_secrets_too() -> None:
    server = Server()

    @server.action("GET", "/stranger")
    async def stranger(ctx: Context) -> Any:
        return [Stranger(name="visible", password="the-password")]

    async with client(server) as http:
        _answer_is_clean(await http.get("/api/stranger"))


async def test_a_record_looks_the_same_alone_and_inside_a_pydantic_model(database_url: str) -> None:
    server = Server()
    server.register(User, Team, Badge)

    @server.action("GET", "/both")
    async def both(ctx: Context) -> Any:
        user = await ctx.db(User).create(name="visible", password="the-password")
        return [user, Typed(user=user), Anything(value=[user])]

    async with client(server, database=database_url) as http:
        alone, typed, anything = (await http.get("/api/both")).json()["data"]

    assert typed["user"] == alone
    assert anything["value"] == [alone]
    assert alone["fullName"] == "visible"


async def test_an_async_iterator_inside_an_answer_is_a_failure_that_the_log_explains(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()

    @server.action("GET", "/inside")
    async def inside(ctx: Context) -> Any:
        async def later() -> AsyncIterator[int]:
            yield 1

        return {"numbers": later()}

    async with client(server) as http:
        answer = await http.get("/api/inside")

    assert answer.status_code == 500
    assert "async iterator" not in answer.text
    assert any("async iterator" in str(record.exc_info) for record in caplog.records)


async def test_a_mounting_application_writes_no_secret_either() -> None:
    app = FastAPI()

    @app.get("/typed", response_model=list[User])
    def typed() -> Any:
        return [_user(name="visible", password="the-password")]

    @app.get("/untyped", response_model=None)
    def untyped() -> Any:
        return {"users": [_user(name="visible", password="the-password")]}

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        for path in ("/typed", "/untyped"):
            _answer_is_clean(await http.get(path))


def test_code_reads_secrets_and_only_dumps_leave_them_out() -> None:
    user = _user(name="visible", password="the-password")

    assert (user.password, user.token) == ("the-password", "the-token")
    assert set(json.loads(user.model_dump_json())).isdisjoint({"password", "token"})
    assert {"password", "token"} <= vars(user).keys()
    assert user.model_copy().password == "the-password"


async def test_secrets_are_stored_and_updated_although_no_dump_has_them(database_url: str) -> None:
    server = Server()
    server.register(User, Team, Badge)
    async with client(server, database=database_url):
        made = await server.db(User).create(_user(name="a", password="first", token="one"))
        changed = await server.db(User).update(made.id, password="second")
        again = await server.db(User).read(made.id)

    assert (made.password, made.token) == ("first", "one")
    assert (changed.password, again.password, again.token) == ("second", "second", "one")
