"""`Model`, the class people inherit from, and the soft-delete mixins.

The only place where pydantic's metaclass is ours. An instance is checked when it is made by name,
and trusted when it comes from the database (`_from_db`).

For type checkers `Model` is a plain class, so that a column may be called `json` or `copy`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, dataclass_transform

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticSerializationError, ValidationError

from maniflex._ids import new_id
from maniflex._json import BY_ATTRIBUTE, TO_READ_BACK, TO_SEAL
from maniflex.config import Limits
from maniflex.model.class_body import (
    ClassBody,
    add_marker,
    build,
    read_options,
    rules_of,
    settle_fields,
    utc_now,
)
from maniflex.model.core_schema import serializers
from maniflex.model.declared import Index, ModelOptions, OnErase, Retention, SoftDelete
from maniflex.model.field import field, file, scheduled
from maniflex.model.relation import RelationAttribute, RelationSpec, belongs_to, has_many, many_to_many
from maniflex.model.value_rules import by_attribute, details, refusal

if TYPE_CHECKING:
    _BaseType = type

    class _Base:
        pass

else:
    _Base = BaseModel
    _BaseType = type(BaseModel)


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(field, file, scheduled, belongs_to, has_many, many_to_many),
)
class ModelType(_BaseType):
    """The type of every model class."""

    if not TYPE_CHECKING:

        def __new__(mcs, name, bases, namespace, **keywords):
            for_pydantic = {k: keywords.pop(k) for k in list(keywords) if k.startswith("__pydantic_")}
            for_pydantic["__pydantic_reset_parent_namespace__"] = False
            caller = sys._getframe(1)
            local = {} if caller.f_code.co_name == "<module>" else caller.f_locals
            body = ClassBody(name, bases, namespace, local)
            abstract = keywords.pop("abstract", BaseModel in bases)
            options = read_options(body, keywords)
            body.prepare()
            add_marker(body, options)
            create = super().__new__
            cls = build(lambda space: create(mcs, name, bases, space, **for_pydantic), body, namespace)
            _finish(cls, body, options, abstract)
            return cls


def _finish(cls: Any, body: ClassBody, options: ModelOptions, abstract: bool) -> None:
    base_relations: dict[str, RelationSpec] = {}
    problems: list[str] = []
    for base in reversed(cls.__bases__):
        base_relations.update(getattr(base, "__relations__", {}))
        problems.extend(getattr(base, "__problems__", ()))
    for name in base_relations.keys() & cls.__pydantic_fields__.keys():
        body.trouble(name, "is a relation of a base class and cannot become a column")
    for name in body.relations:
        setattr(cls, name, RelationAttribute(name))
    cls.__relations__ = base_relations | body.relations
    cls.__class_vars__.difference_update(cls.__relations__)
    cls.__options__ = options
    cls.__abstract__ = abstract
    cls.__problems__ = tuple(dict.fromkeys([*problems, *body.problems]))
    cls.__loaders__ = ()
    settle_fields(cls)


class Model(_Base, metaclass=ModelType):
    """A table, its create and patch bodies and its response, declared once."""

    if TYPE_CHECKING:
        __problems__: ClassVar[tuple[str, ...]]
        __relations__: ClassVar[Mapping[str, RelationSpec]]
        __options__: ClassVar[ModelOptions]
        __abstract__: ClassVar[bool]
        __loaders__: ClassVar[tuple[tuple[str, Callable[[Any], Any]], ...]]

        def __init_subclass__(
            cls,
            *,
            abstract: bool = ...,
            table: str | None = ...,
            renamed_from: str | None = ...,
            soft_delete: bool | str | SoftDelete | None = ...,
            versioned: bool | None = ...,
            versioned_diff_only: bool | None = ...,
            history_table: str | None = ...,
            history_list: bool | None = ...,
            history_restore: bool | None = ...,
            history_scope: str | Sequence[str] | None = ...,
            history_retention: str | timedelta | None = ...,
            retention: str | timedelta | Retention | Sequence[Retention] | None = ...,
            deleted_retention: str | timedelta | None = ...,
            retention_hold: str | None = ...,
            subject: str | None = ...,
            on_erase: OnErase | None = ...,
            keep_reason: str | None = ...,
            events: Any = ...,
            indices: Sequence[Index | Sequence[str]] | None = ...,
            export: bool | None = ...,
            max_export_rows: int | None = ...,
            aggregate: bool | None = ...,
            optimistic_lock: bool | None = ...,
            singleton: bool | None = ...,
            headless: bool | None = ...,
            cursor_field: str | None = ...,
            search_language: str | None = ...,
            global_searchable: bool | None = ...,
            default_locale: str | None = ...,
            locale_mode: str | None = ...,
            database: Any = ...,
            backend: Any = ...,
            middleware: Any = ...,
            query: str | Mapping[str, str] | None = ...,
            restore: bool | None = ...,
            limits: Limits | None = ...,
            operations: str | Collection[str] | None = ...,
        ) -> None: ...

        def model_dump(self, **options: Any) -> dict[str, Any]:
            """The fields by attribute name."""

    else:
        model_config = ConfigDict(defer_build=True, extra="ignore", protected_namespaces=())

        def __init__(self, /, **values):
            __tracebackhide__ = True
            cls = type(self)
            if not values.keys() <= cls.__pydantic_fields__.keys():
                values = by_attribute(values, cls)
            try:
                cls.__pydantic_validator__.validate_python(values, self_instance=self)
            except ValidationError as error:
                raise refusal(details(error, cls), cls) from None

        # Otherwise pydantic-core would come back through __init__ for every record.
        __init__.__pydantic_base_init__ = True

        def __iter__(self):
            """The fields and their values, as `dict(record)` takes them; secrets are left out."""
            fields = type(self).__pydantic_fields__
            for name, value in self.__dict__.items():
                if name not in fields or not fields[name].exclude:
                    yield name, value

        def __getattr__(self, name):
            """Called for missing attributes: a record of an update has only the fields that were sent."""
            cls = type(self)
            if name in cls.__pydantic_fields__:
                raise AttributeError(
                    f"this {cls.__name__} has no {name!r}: the field was not sent or not read;"
                    f" ctx.field({name!r}) is None for a field that was not sent"
                )
            return super().__getattr__(name)

        @classmethod
        def __get_pydantic_core_schema__(cls, source, handler):
            settle_fields(cls)
            schema = handler(source)
            refuse_loss(cls, handler.resolve_ref_schema(schema))
            return schema

    id: str = field(default_factory=new_id, readonly=True, filterable=True, sortable=True)
    created_at: datetime = field(default_factory=utc_now, readonly=True, filterable=True, sortable=True)
    updated_at: datetime = field(default_factory=utc_now, readonly=True, filterable=True, sortable=True)

    @classmethod
    def _from_db(cls, values: dict[str, Any]) -> Self:
        """An instance of stored values, trusted as they are; takes the dict over."""
        for name, load in cls.__loaders__:
            value = values.get(name)
            if value is not None:
                values[name] = load(value)
        return instance_of(cls, values)


M = TypeVar("M")


_set_dict: Any = BaseModel.__dict__["__dict__"].__set__
_set_extra: Any = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_fields_set: Any = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_private: Any = BaseModel.__dict__["__pydantic_private__"].__set__


def instance_of(cls: type[M], values: dict[str, Any]) -> M:
    """An instance of exactly these attributes, unchecked; takes the dict over."""
    record: Any = cls.__new__(cls)
    _set_dict(record, values)
    _set_extra(record, None)
    _set_fields_set(record, set(values))
    _set_private(record, None)
    if record.__pydantic_post_init__:
        record.model_post_init(None)
    return record  # type: ignore[no-any-return]


class WithDeletedAt:
    """Mixin: DELETE notes the time in `deleted_at` instead of removing the row."""

    deleted_at: datetime | None = field(default=None, readonly=True, filterable=True)


class WithIsDeleted:
    """Mixin: DELETE sets `is_deleted` instead of removing the row."""

    is_deleted: bool = field(default=False, readonly=True, filterable=True)


# Records that pydantic writes, wherever it meets them, by what the writer says in the context.
#
# Pydantic never writes a secret (`exclude`). That is right for answers, and a loss for JSON that is read
# back as the same type: a secret that JSON leaves out would come back as its default. A caller that
# writes such JSON passes `TO_READ_BACK` as context, and records that would lose a secret refuse. A caller
# that writes an answer for somebody passes `HiddenFields`, which takes out what that one may not see.


class HiddenFields:
    """The context of an answer: it takes the fields out of records that the caller may not see."""

    def take_out(self, model: type, values: dict[str, Any]) -> dict[str, Any]:
        """The values of a record by their keys in answers, without those that are hidden."""
        raise NotImplementedError


class RefuseLoss:
    """Serializes the records of one model, unless that would lose a secret of them."""

    def __init__(
        self,
        model: type[BaseModel],
        secrets: list[str],
        encrypted: list[str],
        names: Mapping[Any, str],
        serialization: Any,
    ) -> None:
        self.message = (
            f"{model.__name__}.{secrets[0]} is a secret, which JSON leaves out;"
            " send the id, or a type of your own"
            if secrets
            else None
        )
        self.stored_message = self.message or (
            f"{model.__name__}.{encrypted[0]} is encrypted, and would be stored as it is;"
            " send the id, or a type of your own"
            if encrypted
            else None
        )
        self._model = model
        self._names = names
        self._serialize: Any = (serialization or {}).get("function")
        self._takes_info = (serialization or {}).get("info_arg", False)

    def __call__(self, record: Any, write: Any, info: Any) -> Any:
        context = info.context
        if self.message is not None and any(context is one for one in (TO_READ_BACK, TO_SEAL, BY_ATTRIBUTE)):
            raise PydanticSerializationError(self.message)
        if self.stored_message is not None and context is TO_READ_BACK:
            raise PydanticSerializationError(self.stored_message)
        if self._serialize is None:
            output = write(record)
        elif self._takes_info:
            output = self._serialize(record, write, info)
        else:
            output = self._serialize(record, write)
        if context is BY_ATTRIBUTE and isinstance(output, dict):
            return {self._names.get(name, name): value for name, value in output.items()}
        return self._take_out(output, context)

    def write_alone(self, record: Any, info: Any) -> Any:
        """Serialize a record whose model has a serializer of its own that decides the whole output."""
        output = self._serialize(record, info) if self._takes_info else self._serialize(record)
        return self._take_out(output, info.context)

    def _take_out(self, output: Any, context: Any) -> Any:
        if not isinstance(context, HiddenFields) or not isinstance(output, dict):
            return output
        keys = {attribute: str(key) for key, attribute in self._names.items()}
        rest = context.take_out(self._model, {str(keys.get(name, name)): name for name in output})
        return {name: output[name] for name in rest.values()}


def refuse_loss(model: type[BaseModel], schema: Any) -> None:
    """Let the records of the schema's model refuse to be stored without their secrets."""
    ours: frozenset[str] = getattr(model, "__omitted__", frozenset())
    fields = model.__pydantic_fields__
    secrets = [name for name, info in fields.items() if info.exclude and name not in ours]
    rules = {name: rules_of(info) for name, info in fields.items()}
    encrypted = [n for n, one in rules.items() if one is not None and one.spec.options.get("encrypted")]
    names = {info.serialization_alias: name for name, info in fields.items() if info.serialization_alias}
    serialization = schema.get("serialization")
    kind = "function-wrap" if serialization is None else serialization["type"]
    function = (serialization or {}).get("function")
    if isinstance(getattr(function, "__self__", function), RefuseLoss):
        return
    if kind == "function-wrap":
        guard: Any = RefuseLoss(model, secrets, encrypted, names, serialization)
    elif kind == "function-plain":  # it says itself what it writes
        guard = RefuseLoss(model, [], [], names, serialization).write_alone
    else:
        return
    schema["serialization"] = {**(serialization or {}), "type": kind, "function": guard, "info_arg": True}


def losses(schema: Any, *, to_seal: bool = False) -> Iterator[str]:
    """Why records inside a schema cannot be stored, a sentence per model; sealed, encrypted fields may be."""
    for function in serializers(schema):
        if isinstance(function, RefuseLoss):
            message = function.message if to_seal else function.stored_message
            if message is not None:
                yield message
