"""What a class body means."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

import pytest
from pydantic import AfterValidator, BaseModel, Field
from typing_extensions import TypedDict

from maniflex.errors import ValidationFailed
from maniflex.model.base import Model, WithDeletedAt, WithIsDeleted
from maniflex.model.field import FileRules, LocaleString, field, file, scheduled
from maniflex.model.meta import Index, Kind, ModelOptions, SoftDelete
from tests.kit.declarations import details_of, meta_of, option, sealed, validator_of


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Address:
    street: str
    since: date | None = None


class Settings(BaseModel):
    theme: str = "light"


class Link(TypedDict):
    url: str


class Everything(Model):
    text: str
    whole: int
    real: float
    flag: bool
    exact: Decimal
    instant: datetime
    day: date
    clock: time
    key: UUID
    blob: bytes
    choice: Literal["a", "b"]
    number: Literal[1, 2]
    colour: Colour
    level: Level
    anything: dict[str, Any]
    items: list[int]
    address: Address
    settings: Settings
    links: list[Link]
    names: LocaleString


def test_every_supported_type_becomes_its_kind_of_column() -> None:
    kinds = {item.name: item.kind for item in meta_of(Everything).fields}

    assert kinds == {
        "id": Kind.TEXT,
        "text": Kind.TEXT,
        "whole": Kind.INT,
        "real": Kind.FLOAT,
        "flag": Kind.BOOL,
        "exact": Kind.DECIMAL,
        "instant": Kind.DATETIME,
        "day": Kind.DATE,
        "clock": Kind.TIME,
        "key": Kind.UUID,
        "blob": Kind.BYTES,
        "choice": Kind.TEXT,
        "number": Kind.INT,
        "colour": Kind.TEXT,
        "level": Kind.INT,
        "anything": Kind.JSON,
        "items": Kind.JSON,
        "address": Kind.JSON,
        "settings": Kind.JSON,
        "links": Kind.JSON,
        "names": Kind.JSON,
        "created_at": Kind.DATETIME,
        "updated_at": Kind.DATETIME,
    }


def test_literals_and_enums_list_their_members() -> None:
    fields = meta_of(Everything).by_name

    assert fields["choice"].enum == ("a", "b")
    assert fields["number"].enum == (1, 2)
    assert fields["colour"].enum == ("red", "blue")
    assert fields["level"].enum == (1, 2)


def test_a_type_with_none_is_nullable_and_defaults_to_null() -> None:
    class Note(Model):
        body: str
        title: str | None
        tags: list[str] | None = field(filterable=False)

    fields = meta_of(Note).by_name

    assert (fields["body"].nullable, fields["body"].required) == (False, True)
    for name in ("title", "tags"):
        assert fields[name].nullable
        assert not fields[name].required
        assert fields[name].has_default
        assert fields[name].default is None


def test_id_comes_first_and_the_marker_and_timestamps_come_last() -> None:
    class Note(Model, WithDeletedAt):
        body: str
        title: str

    names = [item.name for item in meta_of(Note).fields]

    assert names == ["id", "body", "title", "deleted_at", "created_at", "updated_at"]


def test_id_and_timestamps_cannot_be_written_by_a_client() -> None:
    fields = meta_of(Everything).by_name

    assert all(fields[name].readonly and fields[name].sortable for name in ("id", "created_at", "updated_at"))


def test_the_timestamps_may_be_declared_again_to_add_options() -> None:
    class Note(Model):
        created_at: datetime = field(index=True)

    created = meta_of(Note).by_name["created_at"]

    assert created.index
    assert created.readonly
    assert not created.required


def test_a_table_is_named_by_convention_or_by_keyword() -> None:
    class BlogCategory(Model):
        name: str

    class Legacy(Model, table="tbl_legacy"):
        name: str

    assert meta_of(BlogCategory).table == "blog_categories"
    assert meta_of(Legacy).table == "tbl_legacy"


def test_registration_options_win_over_class_keywords() -> None:
    class Note(Model, table="scraps", export=True):
        body: str

    meta = meta_of(Note, ModelOptions(table="notes"))

    assert meta.table == "notes"
    assert meta.options.export is True


def test_a_column_may_carry_any_name_of_pydantics_own_methods() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Odd(Model):
            json: dict[str, Any]
            copy: str
            schema: str = "public"
            validate: bool
            parse_obj: int = 3
            construct: str | None
            model_type: str
            metadata: list[str]

        record = validator_of(Odd).create(
            {"json": {"a": 1}, "copy": "x", "validate": True, "model_type": "t", "metadata": []}
        )

    assert isinstance(record, Odd)
    assert (record.json, record.copy, record.schema) == ({"a": 1}, "x", "public")
    assert (record.validate, record.parse_obj, record.construct) == (True, 3, None)


def test_a_field_called_like_a_method_is_still_required() -> None:
    class Odd(Model):
        json: dict[str, Any]

    with pytest.raises(ValidationFailed) as caught:
        validator_of(Odd).create({})

    assert details_of(caught) == {"json": "required"}


def test_a_field_may_share_its_name_with_a_type_others_use() -> None:
    class Event(Model):
        class Place(StrEnum):
            HERE = "here"

        date: date
        until: date | None  # type: ignore[valid-type] # what is being tested
        place: Place

    fields = meta_of(Event).by_name

    assert (fields["date"].kind, fields["until"].kind) == (Kind.DATE, Kind.DATE)
    assert fields["place"].enum == ("here",)


Title = Annotated[str, field(max_length=5, filterable=True)]


class Named(Model):
    title: Title
    short: Title = field(max_length=3)
    maybe: Title | None
    preset: Annotated[str, field(default="x", sortable=True)]
    positive: Annotated[int, Field(gt=0)]
    shout: Annotated[str, AfterValidator(str.upper), field(min_length=2)]


def test_options_inside_annotated_make_named_field_types() -> None:
    fields = meta_of(Named).by_name

    assert (fields["title"].max_length, fields["title"].filterable) == (5, True)
    assert (fields["maybe"].max_length, fields["maybe"].nullable) == (5, True)
    assert (fields["preset"].default, fields["preset"].sortable) == ("x", True)


def test_what_stands_on_the_attribute_wins_over_annotated() -> None:
    short = meta_of(Named).by_name["short"]

    assert (short.max_length, short.filterable) == (3, True)


def test_rules_from_annotated_are_enforced_beside_pydantics_own() -> None:
    validator = validator_of(Named)
    good = {"title": "abcde", "short": "abc", "positive": 1, "shout": "hi"}

    assert vars(validator.create(good))["shout"] == "HI"
    with pytest.raises(ValidationFailed) as caught:
        validator.create({"title": "abcdef", "short": "abcd", "maybe": "abcdef", "positive": 0, "shout": "x"})
    assert details_of(caught) == {
        "title": "max_length",
        "short": "max_length",
        "maybe": "max_length",
        "positive": "min",
        "shout": "min_length",
    }


class Tenant(Model, abstract=True, soft_delete=True, export=True):
    tenant: str = field(immutable=True)


class Stamped:
    """A plain mixin."""

    stamped_by: str | None = field(readonly=True)
    kind: str = "plain"


def test_abstract_bases_and_plain_mixins_are_inherited() -> None:
    class Invoice(Tenant, Stamped):
        number: str

    meta = meta_of(Invoice)

    assert {"tenant", "stamped_by", "kind", "number", "deleted_at"} <= meta.by_name.keys()
    assert meta.by_name["tenant"].immutable
    assert meta.by_name["stamped_by"].readonly
    assert meta.by_name["kind"].default == "plain"
    assert meta.soft_delete == SoftDelete("deleted_at", timestamp=True)
    assert meta.options.export is True


def test_a_model_can_extend_a_concrete_one_under_its_own_table() -> None:
    class Animal(Model, table="animals"):
        name: str

    class Dog(Animal):
        breed: str

    metas = sealed(Animal, Dog)

    assert metas["Dog"].table == "dogs"
    assert {"name", "breed"} <= metas["Dog"].by_name.keys()
    assert "breed" not in metas["Animal"].by_name


def test_class_variables_and_methods_are_no_columns() -> None:
    class Note(Model):
        LIMIT: ClassVar[int] = 5
        body: str

        def shout(self) -> str:
            return self.body.upper()

    assert "LIMIT" not in meta_of(Note).by_name
    assert Note(body="a").shout() == "A"


def test_three_names_of_a_field() -> None:
    class Note(Model):
        body: str = field(alias="bodyText", column="body_text")

    item = meta_of(Note).by_name["body"]

    assert (item.name, item.api, item.column) == ("body", "bodyText", "body_text")
    assert meta_of(Note).by_api["bodyText"].name == "body"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ModelOptions(soft_delete=True), SoftDelete("deleted_at", timestamp=True)),
        (ModelOptions(soft_delete="gone"), SoftDelete("gone", timestamp=False)),
        (ModelOptions(soft_delete="gone_at"), SoftDelete("gone_at", timestamp=True)),
        (ModelOptions(soft_delete=False), None),
        (None, None),
    ],
)
def test_soft_delete_is_chosen_at_registration(
    options: ModelOptions | None, expected: SoftDelete | None
) -> None:
    class Note(Model):
        gone: bool = False
        gone_at: datetime | None

    meta = meta_of(Note, *([options] if options else []))

    assert meta.soft_delete == expected


def test_the_marker_soft_delete_adds_is_a_working_field() -> None:
    class Note(Model):
        body: str

    meta = meta_of(Note, ModelOptions(soft_delete=True))
    marker = meta.by_name["deleted_at"]

    assert (marker.nullable, marker.readonly, marker.filterable) == (True, True, True)
    assert vars(meta.validator.create({"body": "x"}))["deleted_at"] is None


def test_mixins_switch_soft_delete_on_and_options_switch_it_off() -> None:
    class Flagged(Model, WithIsDeleted):
        body: str

    class Kept(Model, WithDeletedAt, soft_delete=False):
        body: str

    assert meta_of(Flagged).soft_delete == SoftDelete("is_deleted", timestamp=False)
    assert meta_of(Kept).soft_delete is None


def test_a_field_called_deleted_at_alone_marks_nothing() -> None:
    class Import(Model):
        deleted_at: datetime | None

    assert meta_of(Import).soft_delete is None


def test_indices_and_locks_are_read_by_attribute_name() -> None:
    class Invoice(Model, indices=[("number", "status"), Index(("number",), unique=True)]):
        number: str = field(alias="no")
        status: Literal["draft", "posted", "void"] = field(
            default="draft", lock_when={"status": ["posted", "void"]}
        )

    meta = meta_of(Invoice)

    assert meta.indices == (Index(("number", "status")), Index(("number",), unique=True))
    assert [(lock.field, lock.value) for lock in meta.locks] == [("status", "posted"), ("status", "void")]


def test_files_schedules_locales_and_keys_are_kept_as_declared() -> None:
    class Post(Model, WithDeletedAt):
        status: Literal["draft", "live"] = "draft"
        cover: str | None = file(max_size="2MB", accept=["image/*"], acl="signed")
        publish_at: datetime | None = scheduled(set_field="status", from_="draft", to="live")
        expires_at: datetime | None = scheduled(soft_delete=True)
        name: LocaleString = field(locale="resolve", filterable=True)
        secret: str = field(encrypted=True)
        pin: str = field(encrypted="pins", unique=True)

    fields = meta_of(Post).by_name

    assert fields["cover"].extra["file"] == FileRules(
        max_size=2 * 1024 * 1024, accept=("image/*",), acl="signed", auto_delete=True
    )
    assert fields["publish_at"].extra["scheduled"] == {
        "set_field": "status",
        "from_": "draft",
        "to": "live",
    }
    assert fields["expires_at"].extra["scheduled"] == {"soft_delete": True}
    assert fields["name"].extra["locale"].mode == "resolve"
    assert (fields["secret"].encrypted, fields["pin"].encrypted) == ("default", "pins")
    assert fields["secret"].secret


def test_hidden_writeonly_and_encrypted_fields_are_secret_but_stay_columns() -> None:
    class Account(Model):
        internal: str = field(default="", hidden=True)
        password: str = field(writeonly=True)
        pin: str = field(encrypted=True)
        name: str

    fields = meta_of(Account).by_name

    assert {name for name, item in fields.items() if item.secret} == {"internal", "password", "pin"}
    assert {name for name, item in fields.items() if not item.visible} == {"internal", "password"}


def test_defaults_are_kept_in_the_form_their_field_gives_them() -> None:
    class Price(Model):
        amount: Decimal = option(default=0)
        rate: float = 1
        colour: Colour = option(default="red")
        since: datetime = option(default="2024-01-01T00:00:00+02:00")

    fields = meta_of(Price).by_name
    record = Price()

    assert isinstance(fields["amount"].default, Decimal)
    assert isinstance(fields["rate"].default, float)
    assert fields["colour"].default is Colour.RED
    assert fields["since"].default.isoformat() == "2023-12-31T22:00:00+00:00"
    assert isinstance(record.amount, Decimal)
    assert record.colour is Colour.RED


def test_mutable_defaults_are_not_shared_between_records() -> None:
    class Note(Model):
        tags: list[str] = []  # noqa: RUF012 - what is being tested
        meta: dict[str, Any] = field(default_factory=dict)

    first, second = Note(), Note()
    first.tags.append("x")
    first.meta["x"] = 1

    assert (second.tags, second.meta) == ([], {})


def test_a_local_type_is_found_under_postponed_annotations() -> None:
    class Theme(BaseModel):
        name: str

    class Page(Model):
        theme: Theme

    record = Page(theme=Theme(name="dark"))

    assert meta_of(Page).by_name["theme"].kind is Kind.JSON
    assert record.theme.name == "dark"


class EarlyPage(Model):
    layout: Layout
    width: Width


@dataclass
class Layout:
    columns: int


Width = Annotated[int, field(min=1, default=80)]


def test_types_may_be_declared_after_the_model_that_uses_them() -> None:
    fields = meta_of(EarlyPage).by_name

    assert fields["layout"].kind is Kind.JSON
    assert (fields["width"].min, fields["width"].default) == (1, 80)
    assert EarlyPage(layout=Layout(2)).width == 80  # type: ignore[call-arg] # the default is in the named type


def test_one_class_can_be_registered_with_several_servers() -> None:
    class Note(Model):
        body: str

    first, second = meta_of(Note), meta_of(Note, ModelOptions(table="scraps"))

    assert (first.table, second.table) == ("notes", "scraps")


def test_bounds_come_in_the_kind_of_their_field() -> None:
    class Item(Model):
        price: Decimal = field(min=0, max=0.1)
        count: int = field(min=1)

    fields = meta_of(Item).by_name

    assert (fields["price"].min, fields["price"].max) == (Decimal(0), Decimal("0.1"))
    assert type(fields["count"].min) is int
