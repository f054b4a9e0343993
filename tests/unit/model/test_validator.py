"""Bodies and records through the validator of their model."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self

import pytest
from pydantic import BaseModel, ValidationInfo, field_validator, model_validator

from maniflex.errors import ValidationFailed
from maniflex.model.base import Model
from maniflex.model.field import field
from tests.kit.declarations import details_of, messages_of, option, validator_of


@dataclass
class Theme:
    name: str
    size: int = 1


class Post(Model):
    title: str = field(max_length=10)
    body: str | None = None
    views: int = field(default=0, min=0)
    status: Literal["draft", "live"] = "draft"
    theme: Theme | None = None
    slug: str = field(default="", alias="urlName")


POST = validator_of(Post)


def test_every_offending_field_is_listed_at_once() -> None:
    with pytest.raises(ValidationFailed) as caught:
        POST.create({"body": 5, "views": -1, "status": "x", "theme": {"size": "2"}, "urlName": None})

    assert details_of(caught) == {
        "title": "required",
        "body": "type",
        "views": "min",
        "status": "enum",
        "theme.name": "required",
        "theme.size": "type",
        "urlName": "not_null",
    }


def test_messages_are_plain_sentences_with_the_clients_own_names() -> None:
    with pytest.raises(ValidationFailed) as caught:
        POST.create({"views": None, "status": "x", "urlName": 5, "theme": 7})

    assert messages_of(caught) == [
        'field "title" is required',
        'field "views" must not be null',
        'field "status" must be one of: draft, live',
        'field "theme" must be an object',
        'field "urlName" must be text',
    ]


def test_offences_inside_a_pydantic_model_are_told_in_the_same_words() -> None:
    class Opening(BaseModel):
        at: datetime
        seats: int

    class Shop(Model):
        opening: Opening

    with pytest.raises(ValidationFailed) as caught:
        validator_of(Shop).create({"opening": {"at": "soon", "seats": "many"}})

    assert messages_of(caught) == [
        'field "opening.at" must be a date and time like 2024-05-31T09:30:00Z',
        'field "opening.seats" must be an integer',
    ]


def test_a_message_never_repeats_the_value() -> None:
    with pytest.raises(ValidationFailed) as caught:
        POST.create({"title": "hunter2-hunter2", "views": "hunter2", "status": "hunter2"})

    assert "hunter2" not in str(caught.value.details)


@pytest.mark.parametrize("take", [POST.create, POST.patch, POST.create_from_code, POST.patch_from_code])
def test_null_for_a_field_that_is_not_nullable_is_refused_on_every_path(take: Any) -> None:
    with pytest.raises(ValidationFailed) as caught:
        take({"title": None})

    assert details_of(caught) == {"title": "not_null"}


def test_unknown_keys_of_a_body_are_ignored() -> None:
    assert POST.patch({"title": "a", "nothing": 1}) == {"title": "a"}
    assert "nothing" not in vars(POST.create({"title": "a", "nothing": 1}))


def test_a_body_speaks_api_names_and_code_speaks_attribute_names() -> None:
    assert POST.patch({"urlName": "a"}) == {"slug": "a"}
    assert POST.patch({"slug": "a"}) == {}
    assert POST.patch_from_code({"slug": "a"}) == {"slug": "a"}
    assert vars(POST.create({"title": "t", "urlName": "a", "slug": "b"}))["slug"] == "a"


def test_code_that_misspells_a_field_is_told_what_it_meant() -> None:
    for take in (POST.create_from_code, POST.patch_from_code):
        with pytest.raises(ValidationFailed) as caught:
            take({"titel": "a", "title": "a"})
        assert messages_of(caught) == ["field \"titel\" does not exist; did you mean 'title'?"]


def test_omitted_null_and_empty_stay_three_things_on_patch() -> None:
    assert POST.patch({}) == {}
    assert POST.patch({"body": None}) == {"body": None}
    assert POST.patch({"body": ""}) == {"body": ""}


def test_a_patch_brings_no_defaults_along() -> None:
    assert POST.patch({"title": "a"}) == {"title": "a"}
    assert POST.patch_from_code({"title": "a"}) == {"title": "a"}


def test_a_record_changed_in_code_is_checked_again() -> None:
    record = Post(title="fine")
    record.title = "far too long for it"
    record.views = -1

    with pytest.raises(ValidationFailed) as caught:
        POST.record(record)

    assert details_of(caught) == {"title": "max_length", "views": "min"}


def test_a_record_that_still_fits_keeps_its_identity() -> None:
    record = Post(title="fine", body="x")

    checked = POST.record(record)

    assert vars(checked) == vars(record)


def test_a_record_of_another_model_is_refused() -> None:
    class Other(Model):
        title: str

    with pytest.raises(TypeError):
        POST.record(Other(title="x"))


class Booking(Model):
    starts: int
    ends: int
    code: str = ""
    note: str = field(default="", max_length=5)

    @field_validator("code")
    @classmethod
    def normalised(cls, code: str) -> str:
        if code == "bad":
            raise ValueError("the code is used up")
        return code.strip().upper()

    @field_validator("note", mode="before")
    @classmethod
    def trimmed(cls, note: Any, info: ValidationInfo) -> Any:
        return note.strip() if isinstance(note, str) else note

    @model_validator(mode="after")
    def in_order(self) -> Self:
        if self.starts > self.ends:
            raise ValueError("a booking cannot end before it starts")
        return self


BOOKING = validator_of(Booking)


def test_field_validators_of_the_class_run_on_create_and_patch() -> None:
    assert vars(BOOKING.create({"starts": 1, "ends": 2, "code": " a "}))["code"] == "A"
    assert BOOKING.patch({"code": " b ", "note": "  abc  "}) == {"code": "B", "note": "abc"}


def test_a_validators_own_words_reach_the_client() -> None:
    for take in (BOOKING.patch, BOOKING.patch_from_code):
        with pytest.raises(ValidationFailed) as caught:
            take({"code": "bad"})
        assert caught.value.details == [
            {"field": "code", "message": "the code is used up", "code": "invalid"}
        ]


def test_model_validators_run_on_create() -> None:
    with pytest.raises(ValidationFailed) as caught:
        BOOKING.create({"starts": 2, "ends": 1})

    assert caught.value.details == [
        {"field": "", "message": "a booking cannot end before it starts", "code": "invalid"}
    ]


def test_model_validators_run_on_the_merged_record_of_a_patch() -> None:
    current = Booking(starts=1, ends=5)

    assert BOOKING.has_model_validators
    assert BOOKING.patch({"ends": 0}) == {"ends": 0}
    assert vars(BOOKING.merge(current, {"ends": 9}))["ends"] == 9
    with pytest.raises(ValidationFailed) as caught:
        BOOKING.merge(current, {"ends": 0})
    assert details_of(caught) == {"": "invalid"}
    assert current.ends == 5


def test_an_old_row_that_breaks_a_new_rule_does_not_stop_an_unrelated_patch() -> None:
    stored = {**vars(Booking(starts=1, ends=5)), "note": "longer than allowed"}

    merged = BOOKING.merge(Booking._from_db(stored), {"ends": 6})

    assert vars(merged)["note"] == "longer than allowed"


def test_a_model_without_validators_of_its_own_says_so() -> None:
    assert not POST.has_model_validators
    assert vars(POST.merge(Post(title="a"), {"title": "b"}))["title"] == "b"


def test_model_validators_before_see_attribute_names() -> None:
    seen: list[Any] = []

    class Note(Model):
        body: str = field(alias="bodyText")

        @model_validator(mode="before")
        @classmethod
        def look(cls, data: Any) -> Any:
            seen.append(dict(data))
            return data

    validator_of(Note).create({"bodyText": "x"})

    assert seen == [{"body": "x"}]


def test_what_a_default_factory_makes_is_checked() -> None:
    class Note(Model):
        rank: int = option(default_factory=lambda: "first")

    with pytest.raises(ValidationFailed) as caught:
        validator_of(Note).create({})

    assert details_of(caught) == {"rank": "type"}


def test_server_made_values_pass_through_the_same_door() -> None:
    stamp = datetime.fromisoformat("2024-05-31T12:00:00+00:00")

    record = POST.create_from_code({"title": "a", "id": "x", "created_at": stamp})

    assert (vars(record)["id"], vars(record)["created_at"]) == ("x", stamp)
