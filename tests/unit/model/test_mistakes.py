"""Everything a declaration can get wrong stops the start, by name, all at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal, cast

import pytest
from pydantic import field_validator

from maniflex.errors import DeclarationError
from maniflex.model.base import Model, ModelType, WithDeletedAt, WithIsDeleted
from maniflex.model.field import LocaleString, field, file, scheduled
from maniflex.model.meta import Index, ModelOptions
from maniflex.model.registry import Registry
from tests.kit.declarations import option, problems_of

# The annotations here are made of local values, so none of them may be postponed.


class Empty(StrEnum):
    pass


class Strange:
    pass


def declared(name: str, annotation: Any, value: Any = None, **keywords: Any) -> type[Model]:
    """A model `Post` with one field."""
    body: dict[str, Any] = {
        "__module__": __name__,
        "__qualname__": "Post",
        "__annotations__": {name: annotation},
    }
    if value is not None:
        body[name] = value
    made: Any = ModelType("Post", (Model,), body, **keywords)
    return cast(type[Model], made)


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("read_only", "readonly"),
        ("Readonly", "readonly"),
        ("uniqe", "unique"),
        ("filtrable", "filterable"),
        ("maxlength", "max_length"),
        ("defualt", "default"),
    ],
)
def test_a_misspelt_option_is_refused_and_the_intended_one_is_named(misspelt: str, meant: str) -> None:
    [problem] = problems_of(declared("title", str, option(**{misspelt: True})))

    assert problem == f"Post.title: unknown option {misspelt!r}; did you mean {meant!r}?"


def test_options_of_other_libraries_are_explained() -> None:
    [required] = problems_of(declared("title", str, option(required=True)))
    [bound] = problems_of(declared("count", int, option(ge=1)))

    assert required.endswith("a field without a default that is not `| None` is required")
    assert bound.endswith("use `min`")


def test_a_misspelt_option_inside_annotated_is_refused() -> None:
    [problem] = problems_of(declared("title", Annotated[str, option(read_only=True)]))

    assert "did you mean 'readonly'?" in problem


@pytest.mark.parametrize(
    "options",
    [
        {"readonly": True, "writeonly": True},
        {"readonly": True, "immutable": True},
        {"hidden": True, "writeonly": True},
        {"hidden": True, "immutable": True},
        {"hidden": True, "filterable": True},
        {"hidden": True, "sortable": True},
        {"hidden": True, "searchable": True},
        {"writeonly": True, "filterable": True},
        {"writeonly": True, "sortable": True},
        {"writeonly": True, "searchable": True},
        {"encrypted": True, "filterable": True},
        {"encrypted": "key", "sortable": True},
        {"encrypted": True, "searchable": True},
        {"encrypted": True, "index": True},
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any]) -> None:
    one, other = options

    [problem] = problems_of(declared("title", str, option(default="", **options)))

    assert problem.startswith(f"Post.title: {one} and {other} contradict each other")


@pytest.mark.parametrize(
    ("annotation", "options", "part"),
    [
        (str, {"min": 3}, "min can only bound numbers; use min_length"),
        (str, {"min": 3, "max": 4}, "use min_length and max_length"),
        (bool, {"max": 3}, "can only bound numbers"),
        (datetime, {"min": 3}, "can only bound numbers"),
        (Literal[1, 2], {"min": 1}, "can only bound numbers"),
        (int, {"min": "abc"}, "min must be a number, not 'abc'"),
        (int, {"max": True}, "max must be a number, not True"),
        (float, {"min": float("nan")}, "min must be a number"),
        (int, {"min": 1.5}, "min must be a 64-bit integer"),
        (int, {"max": 2**63}, "max must be a 64-bit integer"),
        (int, {"min": 5, "max": 4}, "min 5 is above max 4"),
        (Decimal, {"min": Decimal("0.2"), "max": 0.1}, "is above max"),
        (int, {"min_length": 3}, "can only limit text and bytes; use min and max"),
        (list, {"max_length": 3}, "can only limit text and bytes"),
        (str, {"min_length": -1}, "must be a whole number"),
        (str, {"max_length": "9"}, "must be a whole number"),
        (str, {"min_length": 9, "max_length": 3}, "min_length 9 is above max_length 3"),
        (str, {"pattern": "("}, "pattern is not a regular expression"),
        (str, {"pattern": 5}, "pattern is not a regular expression"),
        (int, {"pattern": "a"}, "pattern can only be set on text"),
        (int, {"searchable": True}, "searchable can only be set on text"),
        (dict, {"sortable": True}, "sortable cannot be set on a JSON column"),
        (bytes, {"filterable": True}, "filterable cannot be set on bytes"),
        (dict, {"unique": True}, "unique cannot be set on a JSON column"),
        (int, {"encrypted": True}, "encrypted can only be set on text"),
        (str, {"encrypted": 5}, "encrypted must be True or the name of a key"),
        (str, {"filterable": "yes"}, "filterable must be True or False"),
        (str, {"column": 'a"; drop table x'}, "cannot name a column"),
        (str, {"column": "a" * 64}, "cannot name a column"),
        (str, {"alias": "a.b"}, "cannot name a field"),
        (str, {"default": "a", "default_factory": str}, "cannot both be given"),
        (str, {"default_factory": 5}, "default_factory must be callable"),
        (str, {"relation": 5}, "relation must be a model, its name, or None"),
        (str, {"lock_scope": 5}, "lock_scope must be a model or its name"),
        (str, {"locale": True}, "locale needs a LocaleString field"),
        (LocaleString, {"locale": "sideways"}, "unknown locale mode 'sideways'"),
        (LocaleString, {"locale": {"default": "!"}}, "'!' is not a locale code"),
        (str, {"lock_when": {}}, "lock_when must map a field"),
        (str, {"lock_when": "status=posted"}, "lock_when must map a field"),
    ],
)
def test_an_option_that_does_not_fit_its_field_is_refused(
    annotation: Any, options: dict[str, Any], part: str
) -> None:
    problems = problems_of(declared("value", annotation, option(**options)))

    assert any(problem.startswith("Post.value: ") and part in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("annotation", "part"),
    [
        (set, "no column can hold set"),
        (set[int], "no column can hold set[int]"),
        (complex, "no column can hold complex"),
        (Strange, "no column can hold Strange"),
        (int | str, "no column can hold Union[int, str]"),
        (Any, "no column can hold Any"),
        (object, "no column can hold object"),
        (Empty, "the enum has no members"),
        (Literal["a", ""], "an enum member is empty"),
        (Literal["a", 1], "must be all text or all integers"),
        (Literal[True, False], "must be all text or all integers"),
        ("Nowhere", "the annotation 'Nowhere' cannot be resolved"),
    ],
)
def test_a_type_without_a_column_is_refused(annotation: Any, part: str) -> None:
    [problem] = problems_of(declared("value", annotation))

    assert problem.startswith("Post")
    assert part in problem


def test_an_unsupported_type_is_told_what_is_supported() -> None:
    [problem] = problems_of(declared("value", set))

    assert problem.startswith("Post.value: ")
    assert "datetime" in problem
    assert "StrEnum" in problem


@pytest.mark.parametrize(
    ("annotation", "default", "options"),
    [
        (int, "5", {}),
        (int, True, {}),
        (int, None, {}),
        (int, 11, {"max": 10}),
        (str, "abcd", {"max_length": 3}),
        (str, "x'; drop table posts", {"pattern": "^[a-z]+$"}),
        (Literal["a", "b"], "c", {}),
        (bool, "false", {}),
        (datetime, 0, {}),
        (Decimal, 0.5, {}),
        (dict, [], {}),
        (list[int], ["1"], {}),
        (list[tuple[int, str]], [("1", "a")], {}),
        (dict, {"a": {1, 2}}, {}),
        (str, "a\x00b", {}),
    ],
)
def test_a_default_that_breaks_its_own_fields_rules_is_refused(
    annotation: Any, default: Any, options: dict[str, Any]
) -> None:
    [problem] = problems_of(declared("value", annotation, option(default=default, **options)))

    assert problem.startswith(f"Post.value: the default {default!r} does not fit")


def test_a_plain_default_is_checked_like_a_declared_one() -> None:
    [problem] = problems_of(declared("value", int, "5"))

    assert problem == "Post.value: the default '5' does not fit: it must be an integer"


def in_body(**body: Any) -> type[Model]:
    made: Any = ModelType("Post", (Model,), {"__module__": __name__, "__qualname__": "Post", **body})
    return cast(type[Model], made)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"__annotations__": {"_secret": str}}, "Post._secret: a field name cannot start with an underscore"),
        ({"title": field()}, "Post.title: has no type annotation"),
        ({"title": "x"}, "Post.title: has no type annotation"),
        ({"created_at": "now"}, "Post.created_at: has no type annotation"),
        ({"__annotations__": {"model_dump": str}}, "Post.model_dump: this name is taken by pydantic"),
        ({"__annotations__": {"id": int}}, "Post.id: must stay str"),
        ({"__annotations__": {"id": str | None}}, "Post.id: must stay str"),
        ({"__annotations__": {"created_at": str}}, "Post.created_at: must stay datetime"),
        ({"__annotations__": {"id": str}, "id": field(alias="_id")}, "Post.id: the id cannot take alias"),
        ({"model_config": {"extra": "allow"}}, "Post: model_config may not set 'extra'"),
        ({"model_config": {"frozen": True}}, "Post: model_config may not set 'frozen'"),
    ],
)
def test_a_body_that_cannot_be_a_table_is_refused(body: dict[str, Any], expected: str) -> None:
    [problem] = problems_of(in_body(**body))

    assert problem.startswith(expected)


def test_a_validator_of_a_field_that_does_not_exist_is_refused() -> None:
    def check(cls: Any, value: Any) -> Any:
        return value

    [problem] = problems_of(
        in_body(__annotations__={"title": str}, check=field_validator("titel")(classmethod(check)))
    )

    assert problem == (
        "Post.check: validates a field that does not exist: Post has no field 'titel'; did you mean 'title'?"
    )


def test_what_pydantic_refuses_becomes_a_problem_too() -> None:
    class Unschemable:
        def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
            raise TypeError("there is no schema for this")

    [problem] = problems_of(declared("value", Annotated[list, Unschemable()]))

    assert problem.startswith("Post: ")
    assert "no schema for this" in problem


def test_two_fields_on_one_column_or_one_api_name_are_refused() -> None:
    class Post(Model):
        one: str = field(column="shared", alias="same")
        two: str = field(column="Shared", alias="same")

    assert problems_of(Post) == (
        "Post.two: shares the column 'Shared' with one",
        "Post.two: shares the API name 'same' with one",
    )


@pytest.mark.parametrize(
    ("annotation", "spec", "part"),
    [
        (datetime, lambda: scheduled(hard_delete=True), "needs a `datetime | None` field"),
        (str | None, lambda: scheduled(hard_delete=True), "needs a `datetime | None` field"),
        (datetime | None, lambda: scheduled(), "needs exactly one of"),
        (datetime | None, lambda: scheduled(hard_delete=True, soft_delete=True), "needs exactly one of"),
        (datetime | None, lambda: scheduled(soft_delete=True), "needs a soft-delete model"),
        (datetime | None, lambda: scheduled(set_field="id"), "needs to="),
        (datetime | None, lambda: scheduled(set_field="nothing", to=1), "Post has no field 'nothing'"),
        (datetime | None, lambda: scheduled(set_field="created_at", to=1), "cannot be set by a schedule"),
        (datetime | None, lambda: scheduled(hard_delete=True, to=1), "only go with set_field"),
        (datetime | None, lambda: option_of(scheduled, set_feld="id"), "did you mean 'set_field'?"),
    ],
)
def test_a_schedule_that_could_never_run_is_refused(
    annotation: Any, spec: Callable[[], Any], part: str
) -> None:
    problems = problems_of(declared("at", annotation, spec()))

    assert any(part in problem for problem in problems), problems


def option_of(make: Callable[..., Any], **options: Any) -> Any:
    return make(**options)


class Timed(Model, WithDeletedAt):
    status: str = "draft"
    tags: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        (lambda: scheduled(set_field="tags", to=[]), "tags is a JSON column and cannot be set by a schedule"),
        (
            lambda: scheduled(set_field="deleted_at", to=None),
            "deleted_at marks deleted records",
        ),
        (lambda: scheduled(set_field="at", to=None), "at cannot be set by a schedule"),
        (lambda: scheduled(set_field="status", from_="a", to="a"), "from_ and to are the same"),
        (lambda: scheduled(set_field="status", to=None), "the scheduled to value None does not fit"),
    ],
)
def test_a_schedule_that_could_not_be_kept_is_refused(spec: Callable[[], Any], part: str) -> None:
    class Post(Timed):
        at: datetime | None = spec()

    assert any(part in problem for problem in problems_of(Post)), problems_of(Post)


def test_the_mark_of_deletion_cannot_be_scheduled() -> None:
    class Post(Model, soft_delete="gone_at"):
        gone_at: datetime | None = scheduled(hard_delete=True)

    assert problems_of(Post) == ("Post.gone_at: marks deleted records and cannot be scheduled",)


def test_a_schedule_can_empty_a_key_and_not_point_it_elsewhere() -> None:
    class Author(Model):
        name: str

    class Post(Model):
        author_id: str | None = None
        free_at: datetime | None = scheduled(set_field="author_id", to=None)
        moved_at: datetime | None = scheduled(set_field="author_id", to="somebody")

    assert problems_of(Author, Post) == (
        "Post.moved_at: scheduled: author_id refers to another record; it can only become None",
    )


@pytest.mark.parametrize(("from_", "to"), [("draft", "publishd"), ("drft", "published"), ("draft", 5)])
def test_a_schedule_to_a_value_its_field_refuses_is_refused(from_: Any, to: Any) -> None:
    class Post(Model):
        status: Literal["draft", "published"] = "draft"
        at: datetime | None = scheduled(set_field="status", from_=from_, to=to)

    [problem] = problems_of(Post)

    assert problem.startswith("Post.at: the scheduled ")
    assert problem.endswith("it must be one of: draft, published")


@pytest.mark.parametrize(
    ("annotation", "options", "part"),
    [
        (str, {"acl": "publik"}, "unknown acl 'publik'; use private, signed, public; did you mean 'public'?"),
        (str, {"acl": None}, "unknown acl None"),
        (str, {"max_size": "2 apples"}, "max_size '2 apples' is not a size"),
        (str, {"max_size": 0}, "max_size 0 is not a size"),
        (str, {"accept": "image/*"}, "accept must be a list"),
        (str, {"accept": ["pictures"]}, "accept: 'pictures' is not a media type"),
        (str, {"auto_delete": "no"}, "auto_delete must be True or False"),
        (int, {}, "file() needs a text field"),
        (str, {"max_sise": 5}, "did you mean 'max_size'?"),
    ],
)
def test_a_file_field_that_would_fall_back_to_something_else_is_refused(
    annotation: Any, options: dict[str, Any], part: str
) -> None:
    problems = problems_of(declared("cover", annotation, option_of(file, **options)))

    assert any(part in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"tabel": "x"}, "Post: unknown option 'tabel'; did you mean 'table'?"),
        ({"abstrakt": True}, "Post: unknown option 'abstrakt'; did you mean 'abstract'?"),
        ({"table": "drop table"}, "Post: 'drop table' cannot name a table"),
        ({"table": 5}, "Post: 5 cannot name a table"),
        ({"export": "yes"}, "Post: export must be True or False"),
        ({"max_export_rows": 0}, "Post: max_export_rows must be a positive whole number"),
        ({"soft_delete": 5}, "Post: soft_delete must be True, False or the name of a field"),
        ({"soft_delete": "gone"}, "Post: soft_delete: Post has no field 'gone'"),
        ({"soft_delete": "titel"}, "Post: soft_delete: Post has no field 'titel'; did you mean 'title'?"),
        ({"soft_delete": "title"}, "Post: soft_delete: title must be `datetime | None` or `bool`"),
        ({"restore": True}, "Post: restore needs a soft-delete model"),
        ({"singleton": True}, "Post.title: is required, but a singleton starts from defaults alone"),
        ({"cursor_field": "nothing"}, "Post: cursor_field: Post has no field 'nothing'"),
        ({"cursor_field": "title"}, "Post.title: is the cursor_field, so it must be sortable"),
        ({"locale_mode": "sideways"}, "Post: unknown locale_mode 'sideways'"),
        ({"default_locale": "?"}, "Post: default_locale '?' is not a locale code"),
        ({"search_language": "eng; drop"}, "Post: search_language 'eng; drop' is not"),
        ({"indices": "title"}, "Post: indices must be a list"),
        ({"indices": ["title"]}, "Post: indices: 'title' is not a list of field names"),
        ({"indices": [("titel",)]}, "Post: indices: Post has no field 'titel'; did you mean 'title'?"),
        ({"indices": [("title", "title")]}, "Post: indices: an index names a field twice"),
        ({"indices": [Index(("title",), name="a b")]}, "Post: indices: "),
    ],
)
def test_a_model_option_that_cannot_be_is_refused(keywords: dict[str, Any], expected: str) -> None:
    [problem] = problems_of(declared("title", str, **keywords))

    assert problem.startswith(expected)


def test_a_nullable_cursor_field_is_refused() -> None:
    class Post(Model, cursor_field="rank"):
        rank: int | None = field(sortable=True)

    assert problems_of(Post) == ("Post.rank: is the cursor_field, so it cannot be nullable",)


def test_two_markers_need_a_choice() -> None:
    class Post(Model, WithDeletedAt, WithIsDeleted):
        title: str

    [problem] = problems_of(Post)

    assert "say which with soft_delete=" in problem
    assert not _problems_or_none(Post, ModelOptions(soft_delete="is_deleted"))


def _problems_or_none(*arguments: Any) -> tuple[str, ...]:
    registry = Registry()
    registry.register(*arguments)
    try:
        registry.seal()
    except DeclarationError as error:
        return error.problems
    return ()


def test_a_lock_on_an_unknown_field_or_value_is_refused() -> None:
    class Invoice(Model):
        status: Literal["draft", "posted"] = field(default="draft", lock_when={"status": "postd"})
        number: str = field(lock_when={"state": "x"})

    assert problems_of(Invoice) == (
        "Invoice.status: the lock_when value 'postd' does not fit for status: "
        "it must be one of: draft, posted",
        "Invoice.number: lock_when: Invoice has no field 'state'; did you mean 'status'?",
    )


def test_every_mistake_of_every_model_comes_in_one_message() -> None:
    class User(Model):
        email: str = option(uniqe=True)
        age: int = option(min_length=3, readonly=True, immutable=True)

    class Post(Model, tabel="x"):
        title: str = field(min_length=5, max_length=2)
        author_id: str = field(relation="Usr")

    problems = problems_of(User, Post)

    assert len(problems) == 6
    assert {problem.split(":")[0] for problem in problems} == {
        "User.email",
        "User.age",
        "Post",
        "Post.title",
        "Post.author_id",
    }
    assert str(DeclarationError(*problems)).count("\n  - ") == 6
