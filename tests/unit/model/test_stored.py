"""A JSON column gives back what it was given, or its type is refused when the application starts."""

from dataclasses import InitVar, dataclass
from typing import Annotated, Any, Literal, cast

import pytest
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PlainSerializer,
    Secret,
    SecretBytes,
    SecretStr,
    computed_field,
    field_serializer,
    model_serializer,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from maniflex import Model, Server
from maniflex.model.base import ModelType
from tests.kit.declarations import meta_of, problems_of

# The annotations here are made of local values, so none of them may be postponed.


class Excluded(BaseModel):
    town: str
    secret: str = Field(default="", exclude=True)


class ExcludedSometimes(BaseModel):
    secret: int = Field(default=0, exclude_if=lambda value: value > 9)


class Masked(BaseModel):
    secret: SecretStr


class MaskedBytes(BaseModel):
    secret: SecretBytes | None = None


class MaskedNumber(BaseModel):
    secret: Secret[int]


class Renamed(BaseModel):
    secret: str = Field(serialization_alias="SECRET")


class ReadElsewhere(BaseModel):
    secret: str = Field(validation_alias=AliasChoices("one", "other"))


class ReadDeeper(BaseModel):
    secret: str = Field(validation_alias=AliasPath("nested", "secret"))


class ReadByNameOnly(BaseModel):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=False)
    secret: str = Field(alias="SECRET")


class Rounded(BaseModel):
    secret: float

    @field_serializer("secret")
    def _rounded(self, value: float) -> int:
        return int(value)


class Shortened(BaseModel):
    secret: Annotated[str, PlainSerializer(lambda value: value[:1])]


class Flattened(BaseModel):
    secret: str

    @model_serializer
    def _flat(self) -> str:
        return self.secret


class Parsed(BaseModel):
    secret: Json[list[int]]


class Computing(BaseModel):
    model_config = ConfigDict(extra="forbid")
    town: str

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def secret(self) -> str:
        return self.town


class Encoded(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64")
    secret: bytes


@pydantic_dataclass
class ExcludedData:
    secret: Annotated[int, Field(exclude=True)] = 0


@dataclass
class InitOnly:
    town: str
    secret: InitVar[str]


@dataclass
class AliasedData:
    secret: Annotated[int, Field(alias="SECRET")]


class AliasedDict(TypedDict):
    secret: Annotated[int, Field(alias="SECRET")]


@dataclass
class Holder:
    masked: Masked


class Recursive(BaseModel):
    parts: list["Recursive"] = []
    secret: str = Field(default="", exclude=True)


def column(annotation: Any) -> type[Model]:
    """A model `Post` with the one column `address`."""
    body = {"__module__": __name__, "__qualname__": "Post", "__annotations__": {"address": annotation}}
    made: Any = ModelType("Post", (Model,), body)
    return cast(type[Model], made)


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (Excluded, "exclude=True keeps it out of what is stored"),
        (ExcludedSometimes, "exclude_if may keep it out of what is stored"),
        (Masked, "a secret is stored as asterisks"),
        (MaskedBytes, "a secret is stored as asterisks"),
        (MaskedNumber, "a secret is stored as asterisks"),
        (Renamed, "it is stored as 'SECRET' but read as 'secret'"),
        (ReadElsewhere, "it is stored as 'secret' but read as 'one' or 'other'"),
        (ReadDeeper, "it is stored as 'secret' but read as 'nested.secret'"),
        (ReadByNameOnly, "it is stored as 'SECRET' but read as 'secret'"),
        (Rounded, "it has a serializer of its own"),
        (Shortened, "it has a serializer of its own"),
        (Parsed, "Json is stored as its value but read from text"),
        (Computing, "a computed field is stored, and Computing would take it for an extra one"),
        (Encoded, "bytes are stored as base64 but read as utf8"),
        (ExcludedData, "exclude=True keeps it out of what is stored"),
        (InitOnly, "an InitVar is not stored"),
        (AliasedData, "it is stored as 'secret' but read as 'SECRET'"),
        (AliasedDict, "it is stored as 'secret' but read as 'SECRET'"),
        (Recursive, "exclude=True keeps it out of what is stored"),
    ],
)
def test_a_nested_field_that_would_be_lost_is_refused_by_name(annotation: Any, why: str) -> None:
    owner = annotation.__name__

    assert problems_of(column(annotation)) == (
        f"Post.address: {owner}.secret would not come back from the database: {why}",
    )


def test_a_model_with_a_serializer_of_its_own_is_refused() -> None:
    assert problems_of(column(Flattened)) == (
        "Post.address: Flattened would not come back from the database: it has a serializer of its own",
    )


def test_a_secret_without_a_model_around_it_is_refused() -> None:
    assert problems_of(column(list[SecretStr])) == (
        "Post.address: would not come back from the database: a secret is stored as asterisks",
    )


class Deep(BaseModel):
    inner: dict[str, list[Masked | int]]


@pytest.mark.parametrize(
    "annotation",
    [
        Masked | None,
        list[Masked],
        dict[str, Masked],
        dict[str, list[Masked | int]],
        Annotated[Masked, "something else"],
        Holder,
        list[Holder],
        Deep,
        Literal[3] | Masked,
    ],
)
def test_what_would_be_lost_is_found_however_deep_it_is(annotation: Any) -> None:
    assert problems_of(column(annotation)) == (
        "Post.address: Masked.secret would not come back from the database: a secret is stored as asterisks",
    )


def test_every_field_that_would_be_lost_is_named() -> None:
    class Both(BaseModel):
        renamed: Renamed
        masked: Masked

    assert len(problems_of(column(Both))) == 2


class Street(BaseModel):
    street_name: str = Field(alias="streetName")
    number: int = Field(default=1, validation_alias=AliasChoices("no", "number"))


@pydantic_dataclass
class Flat:
    floor: Annotated[int, Field(alias="onFloor")]  # read and written by pydantic, so by one name


@dataclass
class Door:
    colour: str
    width: int = 1


class House(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    main: Street = Field(alias="mainStreet")
    others: list[Street | None] = []
    by_name: dict[str, Flat] = {}
    door: Door | None = None
    parts: list["House"] = []

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def streets(self) -> int:
        return 1 + len(self.others)


class Estate(Model):
    house: House
    doors: list[Door]


async def test_a_faithful_type_comes_back_as_it_went_in(database_url: str) -> None:
    street = Street(streetName="Long Lane", number=7)
    house = House(
        mainStreet=street,
        others=[street, None],
        by_name={"top": Flat(9)},
        door=Door("red"),
        parts=[House(mainStreet=street)],
    )
    server = Server(database_url)
    server.register(Estate)

    async with server.lifespan():
        made = await server.db(Estate).create(house=house, doors=[Door("blue", 2)])
        read = await server.db(Estate).read(made.id)

    assert read.house == house
    assert read.doors == [Door("blue", 2)]


def test_serializers_that_storing_does_not_use_are_no_problem() -> None:
    meta_of(column(list[Annotated[int, PlainSerializer(str)]]))

    @dataclass
    class Gate:
        width: Annotated[int, PlainSerializer(str)]  # pydantic does not write a plain dataclass

    meta_of(column(Gate))
