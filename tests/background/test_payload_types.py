"""A payload of the declared type reaches its handler equal to what was given, or is refused."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict  # pydantic asks for it before Python 3.12

from maniflex import Model, Run, Server
from maniflex import field as model_field
from maniflex._json import encode
from maniflex.background.jobs import InProcessQueue
from maniflex.background.payload_types import PayloadType
from maniflex.errors import InvalidSchedule, ValidationFailed
from maniflex.testing.clock import FakeClock
from tests.kit.runs import working

T = TypeVar("T")


class Color(Enum):
    RED = 1
    BLUE = "b"


class Aliased(BaseModel):
    one: int = Field(alias="One")
    two: str = Field(default="", validation_alias="deux")
    three: str = Field(default="", serialization_alias="trois")
    four: str = Field(default="", validation_alias="vier", serialization_alias="quatre")
    five: str = Field(default="", validation_alias=AliasChoices(AliasPath("f", 0), "cinq", "fünf"))
    six: str = Field(default="", alias="six6", validation_alias="sechs")


class Swapped(BaseModel):
    first: str = Field(default="", alias="second")
    second: str = Field(default="", alias="first")


class Named(BaseModel):
    model_config = ConfigDict(populate_by_name=True, alias_generator=to_camel, extra="forbid")

    first_name: str
    last_name: str = ""


class OnlyNamed(BaseModel):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=False, extra="forbid")

    given: str = Field(default="", alias="Given")


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")

    n: int = 0


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")

    side: Decimal

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> Decimal:
        return self.side * self.side


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    at: datetime
    who: UUID
    color: Color


class Bytes64(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    data: bytes


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = Field(default=9, validation_alias="n")


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str = Field(default="", serialization_alias="n")


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class Page(BaseModel, Generic[T]):
    items: list[T] = Field(validation_alias="results")


class Nested(BaseModel):
    aliased: Aliased | None = Field(default=None, serialization_alias="A")
    pets: list[Pet] = []
    by_id: dict[UUID, Named] = {}
    by_number: dict[int, list[Aliased]] = Field(default={}, validation_alias="numbers")
    pair: tuple[int, Aliased] | None = None
    either: int | str | None = None
    pages: Page[Aliased] | None = None


class Numbers(RootModel[list[Aliased]]): ...


class Tree(BaseModel):
    name: str = Field(serialization_alias="label")
    under: list[Tree] = Field(default=[], validation_alias="children")


@dataclass
class Point:
    x: int
    names: dict[str, Aliased] = field(default_factory=dict)


@pydantic_dataclass
class Spot:
    x: int = Field(validation_alias="ex")


class Options(TypedDict):
    size: Annotated[int, Field(validation_alias="Size")]
    color: NotRequired[Annotated[Color, Field(alias="Color")]]


class Part(Model):
    number: str = model_field(alias="partNumber")
    price: Decimal = Decimal(0)


class Assembly(BaseModel):
    part: Part = Field(serialization_alias="P")


def made(cls: Any, **values: Any) -> Any:
    """An instance by the names that its class reads."""
    return cls(**values)


ALIASED = made(Aliased, One=1, deux="2", three="3", vier="4", cinq="5", sechs="6")
AT = datetime(2026, 3, 29, 1, 30, tzinfo=ZoneInfo("Europe/Berlin"))
ID = UUID(int=7)
CARRIED: list[tuple[Any, Any]] = [
    (Aliased, ALIASED),
    (Swapped, Swapped(second="1", first="2")),
    (Named, Named(first_name="Ada", last_name="L")),
    (OnlyNamed, made(OnlyNamed, given="x")),
    (Extra, made(Extra, n=1, more=[1, {"a": None}])),
    (Shape, Shape(side=Decimal("1.50"))),
    (Strict, Strict(at=AT, who=ID, color=Color.BLUE)),
    (Bytes64, Bytes64(data=b"\xff\x00")),
    (Pet, made(Cat, n=3)),
    (Pet, Dog(name="rex")),
    (Page[Aliased], made(Page[Aliased], results=[ALIASED])),
    (
        Nested,
        made(
            Nested,
            aliased=ALIASED,
            pets=[made(Cat, n=1), Dog(name="x")],
            by_id={ID: Named(first_name="x")},
            numbers={1: [ALIASED], -2: []},
            pair=(1, ALIASED),
            either="5",
            pages=made(Page[Aliased], results=[ALIASED]),
        ),
    ),
    (Numbers, Numbers([ALIASED])),
    (Tree, made(Tree, name="a", children=[made(Tree, name="b", children=[Tree(name="c")])])),
    (Point, Point(1, {"a": ALIASED})),
    (Spot, made(Spot, ex=3)),
    (Options, {"size": 1, "color": Color.RED}),
    (list[Aliased], [ALIASED, ALIASED]),
    (dict[str, Aliased] | None, {"a": ALIASED}),
    (Aliased | None, None),
    (Aliased | None, ALIASED),
    (tuple[Aliased, ...], (ALIASED,)),
    (Part, made(Part, number="7", price=Decimal("1.10"))),
    (Assembly, Assembly(part=made(Part, number="7"))),
    (datetime, AT),
    (datetime, datetime(1, 1, 1, tzinfo=UTC)),
    (datetime, datetime(2026, 1, 1, 2, 3, 4, 567891)),
    (date, date(2026, 2, 28)),
    (time, time(23, 59, 59, 999999)),
    (time, time(1, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))),
    (timedelta, timedelta(days=-3, microseconds=7)),
    (Decimal, Decimal("123456789012345678901234567890.000")),
    (UUID, ID),
    (Color, Color.RED),
    (bytes, "grüße".encode()),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (dict[int, str], {1: "a"}),
    (dict[UUID, set[date]], {ID: {date(2026, 1, 1)}}),
    (Literal["a", 1], 1),
    (int | str, "1"),
    (Any, {"plain": [1, 2.5, None, True, "x"]}),
]


def carried(declared: Any, value: Any) -> Any:
    """What the handler would get."""
    known = PayloadType(declared)
    return known.read(known.write(value, encode({} if value is None else value, "payload")))


@pytest.mark.parametrize(("declared", "value"), CARRIED, ids=[f"{n}" for n in range(len(CARRIED))])
def test_what_is_given_arrives(declared: Any, value: Any) -> None:
    arrived = carried(declared, value)
    assert arrived == value
    assert type(arrived) is type(value)


class Masked(BaseModel):
    text: str

    @field_serializer("text")
    def _mask(self, value: str) -> str:
        return value[:1] + "***"


class Secret(BaseModel):
    token: SecretStr


class Left(BaseModel):
    kept: int = 0
    out: int = Field(default=0, exclude=True)


class Path(BaseModel):
    deep: int = Field(default=0, validation_alias=AliasPath("a", "b"))


class Animal(BaseModel):
    name: str = ""


class Fish(Animal):
    fins: int = 2


class Loose(BaseModel):
    thing: Any = None


class Ordered(BaseModel):
    """Equal by its id alone, as entities are."""

    id: int
    token: str = Field(default="", exclude=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ordered) and other.id == self.id

    def __hash__(self) -> int:
        return self.id


@pydantic_dataclass
class Entity:
    id: int
    token: str = Field(default="", exclude=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entity) and other.id == self.id

    def __hash__(self) -> int:
        return self.id


class Holder(BaseModel):
    any: Any = None
    one: Ordered | None = None
    entities: list[Entity] = []


class Counting(BaseModel):
    """Its validator changes what it is given, each time."""

    n: int = 0

    @model_validator(mode="after")
    def _count(self) -> Counting:
        self.n += 1
        return self


class Level(StrEnum):
    HIGH = "high"


LOST = Ordered(id=1, token="t")
REFUSED: list[tuple[Any, Any, str]] = [
    (Ordered, LOST, r"payload\.token"),
    (Entity, Entity(id=1, token="t"), r"payload\.token"),
    (list[Ordered], [Ordered(id=2), LOST], r"payload\.1\.token"),
    (tuple[Ordered, ...], (LOST,), r"payload\.0\.token"),
    (deque[Ordered], deque([LOST]), r"payload\.0\.token"),
    (set[Ordered], {LOST}, "payload"),
    (dict[str, Ordered], {"a": LOST}, r"payload\.a\.token"),
    (Ordered | None, LOST, r"payload\.token"),
    (Holder, Holder(one=LOST), r"payload\.one\.token"),
    (Holder, Holder(entities=[Entity(id=1, token="t")]), r"payload\.entities\.0\.token"),
    (Holder, Holder(any=Ordered(id=1)), r"payload\.any"),
    (Holder, Holder(any={"a": Color.BLUE}), r"payload\.any\.a"),
    (Counting, Counting(n=1), r"payload\.n"),
    (list[Counting], [Counting(n=1)], r"payload\.0\.n"),
    (Counting | None, Counting(n=1), r"payload\.n"),
    (Masked, Masked(text="abc"), r"payload\.text"),
    (Secret, Secret(token=SecretStr("s")), r"payload\.token"),
    (Left, Left(out=1), r"payload\.out"),
    (Path, made(Path, a={"b": 1}), r"payload\.deep"),
    (Animal, Fish(fins=3), "payload"),
    (list[Animal], [Animal(), Fish()], r"payload\.1"),
    (Loose, Loose(thing=AT), r"payload\.thing"),
    (dict[str, Any], {"at": AT}, r"payload\.at"),
    (dict[str, Any], {"made": Animal()}, r"payload\.made"),
    (bytes, b"\xff", "JSON"),
]


@pytest.mark.parametrize(("declared", "value", "place"), REFUSED, ids=[f"{n}" for n in range(len(REFUSED))])
def test_what_would_arrive_changed_is_refused_by_its_place(declared: Any, value: Any, place: str) -> None:
    with pytest.raises(ValidationFailed, match=place):
        carried(declared, value)


@pytest.mark.parametrize("declared", [Counting, list[Counting], Counting | None, Annotated[Counting, "x"]])
def test_a_payload_that_is_checked_does_not_change(declared: Any) -> None:
    one = Counting(n=1)
    with pytest.raises(ValidationFailed):
        carried(declared, [one] if declared == list[Counting] else one)
    assert one.n == 2


@pytest.mark.parametrize("declared", [Ordered, list[Ordered], set[Ordered], Holder])
def test_a_class_that_compares_by_its_id_is_carried_where_nothing_is_lost(declared: Any) -> None:
    one = Ordered(id=1)
    wrapped: Any = {Ordered: one, list[Ordered]: [one], set[Ordered]: {one}}.get(declared, Holder(one=one))
    assert carried(declared, wrapped) == wrapped


def test_an_any_carries_json() -> None:
    arrived = carried(Holder, Holder(any={"pair": (1, 2), "level": Level.HIGH})).any
    assert arrived == {"pair": [1, 2], "level": "high"}
    assert type(arrived["level"]) is str


def test_a_time_keeps_its_instant_and_not_the_name_of_its_zone() -> None:
    arrived = carried(datetime, AT)
    assert (arrived, arrived.utcoffset()) == (AT, AT.utcoffset())
    assert not isinstance(arrived.tzinfo, ZoneInfo)


class Exiting(BaseModel):
    n: int = 0

    @field_validator("n")
    @classmethod
    def _exit(cls, n: int) -> int:
        if n < 0:
            raise SystemExit("not from here")
        return n


def test_a_validator_that_would_end_the_process_refuses_the_payload_instead() -> None:
    with pytest.raises(ValidationFailed, match=r"payload \(SystemExit\) would not reach"):
        carried(Exiting, Exiting.model_construct(n=-1))
    assert PayloadType(list[Exiting]).write([{"n": -1}], "usual") == "usual"


def test_a_private_attribute_does_not_count() -> None:
    class Cached(BaseModel):
        n: int = 0
        _cache: object = object()

        def model_post_init(self, context: Any) -> None:
            self._cache = object()

    assert carried(Cached, Cached(n=3)).n == 3


values = st.recursive(
    st.builds(
        Aliased,
        One=st.integers(-(2**53), 2**53),
        deux=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
        vier=st.sampled_from(["", "NaN", "null", "\\u0000"]),
        sechs=st.just("6"),
    ).map(lambda one: Nested(aliased=one, either=one.one)),
    lambda below: st.builds(
        Nested,
        pets=st.lists(
            st.one_of(st.builds(Cat, n=st.integers(0, 9)), st.builds(Dog, name=st.sampled_from("ab")))
        ),
        by_id=st.dictionaries(st.uuids(), st.sampled_from(["x", ""]).map(lambda n: Named(first_name=n))),
        numbers=st.dictionaries(st.integers(), below.map(lambda n: [] if n.aliased is None else [n.aliased])),
        either=st.one_of(st.none(), st.integers(), st.sampled_from(["1", "null", ""])),
    ),
    max_leaves=3,
)


@given(values)
def test_whatever_is_written_is_read_the_same(value: Nested) -> None:
    assert carried(Nested, value) == value


times = st.datetimes(timezones=st.timezones())


@given(
    st.tuples(
        times, st.decimals(allow_nan=False, allow_infinity=False), st.timedeltas(), st.times(), st.dates()
    )
)
def test_times_and_numbers_are_read_the_same_or_refused(value: Any) -> None:
    declared = tuple[datetime, Decimal, timedelta, time, date]
    try:
        arrived = carried(declared, value)
    except ValidationFailed:
        return
    assert arrived == value


# -- all the ways a payload takes


async def test_a_run_a_job_a_schedule_and_a_message_carry_the_names_their_type_reads(
    server: Server, clock: FakeClock
) -> None:
    seen: list[Any] = []

    @server.work.handler("default.typed", payload=Nested)
    async def typed(run: Run) -> None:
        seen.append(run.payload)

    @server.jobs.handler("tidy", payload=Nested)
    async def tidy(job: Any) -> None:
        seen.append(job.payload)

    @server.outbox.handler("note", payload=Nested)
    async def note(message: Any) -> None:
        seen.append(message.payload)

    given: Nested = CARRIED[11][1]
    server.schedules.enable()
    async with working(server) as work:
        await work.submit("default.typed", given)
        await work.submit_many("default.typed", [given])
        await server.jobs.enqueue("tidy", given)
        await server.schedules.create("each", cron="* * * * *", run="default.typed", payload=given)
        await server.schedules.update("each", payload=given.model_copy(update={"either": 2}))
        await server.schedules.update("each", payload=given)
        await server.schedules.run_now("each")
        clock.advance(timedelta(minutes=1))
        assert await server.schedules.scheduler().tick() == 1
        async with server.transaction():
            await server.outbox.enqueue("note", given)
        await work.worker().drain()
        await server.outbox.drainer().drain()
    assert seen == [given] * 6


async def test_what_cannot_be_carried_is_refused_wherever_it_is_given(server: Server) -> None:
    @server.work.handler("default.typed", payload=Masked)
    async def typed(run: Run) -> None: ...

    @server.jobs.handler("tidy", payload=Masked)
    async def tidy(job: Any) -> None: ...

    @server.outbox.handler("note", payload=Masked)
    async def note(message: Any) -> None: ...

    server.schedules.enable()
    given = Masked(text="abc")
    async with working(server) as work:
        with pytest.raises(ValidationFailed, match=r"payload\.text would not reach its handler"):
            await work.submit("default.typed", given)
        with pytest.raises(ValidationFailed, match=r"payload\.text"):
            await server.jobs.enqueue("tidy", given)
        with pytest.raises(InvalidSchedule, match=r"payload\.text"):
            await server.schedules.create("each", cron="* * * * *", run="default.typed", payload=given)
        with pytest.raises(ValidationFailed, match=r"payload\.text"):
            await server.outbox.enqueue("note", given, outside_transaction=True)
        assert (await work.submit("default.typed", {"text": "abc"})).payload == {"text": "abc"}
        assert len(await work.list()) == 1


async def test_a_job_of_another_queue_carries_them_too(sqlite_url: str, clock: FakeClock) -> None:
    server = Server(sqlite_url, clock=clock)
    server.jobs.use(InProcessQueue(clock=clock))
    seen: list[Any] = []

    @server.jobs.handler("tidy", payload=Aliased)
    async def tidy(job: Any) -> None:
        seen.append(job.payload)

    async with working(server):
        await server.jobs.enqueue("tidy", ALIASED)
        await server.jobs.worker().drain()
    assert seen == [ALIASED]
