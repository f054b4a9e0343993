"""A model class → `ModelMeta`, once, when the application starts.

The only reader of class bodies. It raises nothing: give it a class and the options it is registered
with, get the meta and every problem found. Relations are left open; they need the other models
(`registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import Any, cast

from pydantic import BaseModel
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic.fields import FieldInfo

from maniflex._names import MAX_IDENTIFIER, did_you_mean, table_name
from maniflex.errors import ValidationFailed
from maniflex.model.annotations import Shape, type_name
from maniflex.model.base import Model, WithDeletedAt, WithIsDeleted
from maniflex.model.checks import (
    as_bound,
    index_list,
    locale_settings,
    option_problems,
    option_value_problems,
    query_model_problems,
    rename_problems,
    unique_within,
)
from maniflex.model.class_body import OWN_FIELDS, deletion_time, merged_options, rules_of, settle_fields
from maniflex.model.core_schema import definitions_of, model_fields, roundtrip_problems
from maniflex.model.field import (
    FLAGS,
    FieldSchedule,
    FieldSpec,
    LocaleString,
    file_name_problem,
    file_rules,
    target_problems,
)
from maniflex.model.meta import (
    DIGEST_SUFFIX,
    FieldMeta,
    Index,
    Kind,
    Lock,
    ModelMeta,
    ModelOptions,
    SoftDelete,
)
from maniflex.model.relation import reference_name
from maniflex.model.retention import DeclaredFields, read_retention
from maniflex.model.texts import LOCALE, LocaleRules, locale_rules
from maniflex.model.validate import Validator
from maniflex.model.value_rules import Rules, json_reader

_OWN_TYPES = {"id": str, "created_at": datetime, "updated_at": datetime}


def scan(cls: type[Model], options: ModelOptions | None = None) -> tuple[ModelMeta | None, list[str]]:
    """The meta of a class, or None where the class could not even be built, and all its problems."""
    return _Scan(cls, merged_options(cls.__options__, options)).run()


class _Scan:
    def __init__(self, cls: type[Model], options: ModelOptions) -> None:
        self.cls = cls
        self.model = cast(type[BaseModel], cls)
        self.name = cls.__name__
        self.options = options
        self.problems = list(cls.__problems__)
        self.fields: dict[str, FieldMeta] = {}

    def run(self) -> tuple[ModelMeta | None, list[str]]:
        self.problems += [f"{self.name}: {text}" for text in option_value_problems(self.options)]
        self._add_marker()
        if not self._complete():
            return None, self.problems
        soft_delete = self._soft_delete()
        if soft_delete is not None:
            self._close_marker(soft_delete)
        columns = self._read_columns()
        for item in columns:
            self._check(item)
        self._check_stored(columns)
        self.fields = {item.name: field_meta(item) for item in self._in_column_order(columns, soft_delete)}
        self._settle_translations(columns)
        self._check_names()
        self._settle_uniqueness()
        validator = Validator(self.cls, list(self.fields.values()))
        if self._settle_defaults(columns, validator):
            self.model.model_rebuild(force=True)
            validator = Validator(self.cls, list(self.fields.values()))
        _set_loaders(self.cls, self.fields.values())
        locks = self._locks(columns, validator)
        self._settle_schedules(validator, soft_delete)
        retention, hold = self._retention(validator, soft_delete)
        meta = replace(self._meta(validator, soft_delete, locks), retention=retention, hold=hold)
        self._check_options(soft_delete)
        self._check_query(soft_delete, locks)
        return meta, self.problems

    def trouble(self, field_name: str, text: str) -> None:
        self.problems.append(f"{self.name}.{field_name}: {text}")

    def unknown(self, name: Any) -> str:
        return f"{self.name} has no field {name!r}{did_you_mean(str(name), self.model.__pydantic_fields__)}"

    def _add_marker(self) -> None:
        """`soft_delete=True` at registration: the class body could not know of it."""
        fields = self.model.__pydantic_fields__
        if self.options.soft_delete is True and not {"deleted_at", "is_deleted"} & fields.keys():
            info = FieldInfo.from_annotation(cast(type[Any], datetime | None))
            info.metadata.append(deletion_time())
            fields["deleted_at"] = info
            settle_fields(self.model)
            self.model.__pydantic_complete__ = False

    def _complete(self) -> bool:
        if not self._validators_find_their_fields():
            return False
        try:
            self.model.model_rebuild()
        except PydanticUndefinedAnnotation as error:
            self.problems.append(f"{self.name}: the annotation {error.name!r} cannot be resolved")
        except Exception as error:  # whatever pydantic dislikes is a mistake in the declaration
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self.problems.append(f"{self.name}: {lines[0]}")
        else:
            return True
        return False

    def _validators_find_their_fields(self) -> bool:
        before = len(self.problems)
        for name, decorator in self.model.__pydantic_decorators__.field_validators.items():
            for target in decorator.info.fields:
                exists = target in (*self.model.__pydantic_fields__, "*")
                if not exists and decorator.info.check_fields is not False:
                    self.trouble(name, f"validates a field that does not exist: {self.unknown(target)}")
        return len(self.problems) == before

    def _read_columns(self) -> list[DeclaredField]:
        columns = []
        for name, info in self.model.__pydantic_fields__.items():
            rules = rules_of(info)
            if rules is None:  # to go on without the column would lose what is written to it
                self.trouble(name, f"the annotation {type_name(info.annotation)} cannot be resolved")
            elif not self._has_no_table() or self._is_given(name):
                columns.append(DeclaredField(name, info, rules.shape, rules.spec))
        return columns

    def _has_no_table(self) -> bool:
        return self.options.query is not None or self.options.backend is not None

    def _is_given(self, name: str) -> bool:
        """Whether a query or a backend gives the value: timestamps only where they are declared anew.

        So is the id of a query model; every record of a backend has one.
        """
        if name == "id" and self.options.backend is not None:
            return True
        own = [vars(c).get("__annotations__", {}) for c in self.cls.__mro__ if c is not Model]
        return name not in OWN_FIELDS or any(name in annotations for annotations in own)

    def _check(self, item: DeclaredField) -> None:
        for text in item.spec.unknown:
            self.trouble(item.name, text)
        if item.name in _OWN_TYPES and (item.shape.type, item.shape.nullable) != (
            _OWN_TYPES[item.name],
            False,
        ):
            self.trouble(item.name, f"must stay {_OWN_TYPES[item.name].__name__}; choose another name")
            return
        if item.shape.trouble:
            self.trouble(item.name, item.shape.trouble)
            return
        for text in option_problems(item.name, item.shape, item.spec.options):
            self.trouble(item.name, text)

    def _check_stored(self, columns: list[DeclaredField]) -> None:
        schema: Any = self.model.__pydantic_core_schema__
        definitions, fields = definitions_of(schema), model_fields(schema)
        for item in columns:
            if item.shape.kind is Kind.JSON and not item.shape.trouble:
                for text in roundtrip_problems(fields[item.name], definitions):
                    self.trouble(item.name, text)

    def _in_column_order(
        self, columns: list[DeclaredField], soft_delete: SoftDelete | None
    ) -> list[DeclaredField]:
        last = [soft_delete.field] if soft_delete else []
        last += OWN_FIELDS[1:]
        rank = {"id": -1, **{name: position for position, name in enumerate(last, start=1)}}
        return sorted(columns, key=lambda item: rank.get(item.name, 0))

    def _check_names(self) -> None:
        for attribute, what in (("column", "column"), ("api", "API name")):
            owners: dict[str, str] = {}
            for item in self.fields.values():
                # Case does not tell columns apart on SQLite.
                key = getattr(item, attribute).lower() if attribute == "column" else getattr(item, attribute)
                if key in owners:
                    self.trouble(
                        item.name, f"shares the {what} {getattr(item, attribute)!r} with {owners[key]}"
                    )
                owners.setdefault(key, item.name)

        for item in self.fields.values():
            if problem := file_name_problem(item):
                self.trouble(item.name, problem)
        for name, problem in rename_problems([*self.fields.values()]):
            self.trouble(name, problem)
        self._check_encrypted_names()

    def _check_encrypted_names(self) -> None:
        columns = {item.column.lower(): item.name for item in self.fields.values()}
        for item in [item for item in self.fields.values() if item.has_digest]:
            if item.digest_column.lower() in columns:
                self.trouble(
                    columns[item.digest_column.lower()],
                    f"its column {item.digest_column!r} is that of the digests of {item.name}",
                )
            if len(item.digest_column) > MAX_IDENTIFIER:
                self.trouble(item.name, f"its column leaves no room for {DIGEST_SUFFIX!r} behind its name")

    def _settle_translations(self, columns: list[DeclaredField]) -> None:
        """Tell texts in several languages what the class says of them."""
        for item in columns:
            field_rules = locale_rules(self.fields[item.name])
            rules = rules_of(item.info)
            if field_rules is not None and rules is not None:
                field_rules.settle_model(self.options.locale_mode, self.options.default_locale)
                rules.needs_text = item.required and not item.shape.nullable

    def _settle_uniqueness(self) -> None:
        for item in [item for item in self.fields.values() if item.unique_within]:
            group: list[str] = []
            for name in item.unique_within:
                other = self._find(name)
                if other is None:
                    self.trouble(item.name, f"unique: {self.unknown(name)}")
                elif (
                    other.name in (item.name, "id", *group)
                    or other.kind is Kind.JSON
                    or other.encrypted is not None
                ):
                    self.trouble(item.name, f"unique: {other.name} cannot be what it is unique within")
                else:
                    group.append(other.name)
            self.fields[item.name] = replace(item, unique_within=tuple(group))

    def _settle_defaults(self, columns: list[DeclaredField], validator: Validator) -> bool:
        """Check defaults by the fields' own rules, and keep them in the form the rules give them."""
        has_changes = False
        for item in columns:
            if item.shape.trouble or item.required or item.info.default_factory is not None:
                continue
            default = item.info.default
            if default is None and item.shape.nullable:
                continue
            checked_default = self._fit_value(item.name, default, "default", validator)
            if type(checked_default) is not type(default) or checked_default != default:
                item.info.default = checked_default
                has_changes = True
            self.fields[item.name] = replace(self.fields[item.name], default=checked_default)
        return has_changes

    def _fit_value(
        self, name: str, value: Any, role: str, validator: Validator, owner: str | None = None
    ) -> Any:
        """The value as field `name` would take it; a problem of `owner` when it would not."""
        try:
            return validator.patch_from_code({name: value})[name]
        except ValidationFailed as error:
            for detail in cast(Sequence[Mapping[str, str]], error.details):
                text = detail["message"].removeprefix(f'field "{detail["field"]}" ')
                target = "" if owner is None else f" for {name}"
                self.trouble(owner or name, f"the {role} {value!r} does not fit{target}: it {text}")
            return value

    def _soft_delete(self) -> SoftDelete | None:
        option = self.options.soft_delete
        fields = self.model.__pydantic_fields__
        if option is False:
            return None
        if isinstance(option, SoftDelete):
            option = option.field
        if isinstance(option, str):
            return self._marker(option)
        markers = [name for name in self._usual_markers() if name in fields]
        if len(markers) > 1 and option is None:
            self.problems.append(
                f"{self.name}: both deleted_at and is_deleted mark deletion; say which with soft_delete="
            )
        return self._marker(markers[0]) if markers else None

    def _usual_markers(self) -> list[str]:
        mixins: dict[str, type] = {"deleted_at": WithDeletedAt, "is_deleted": WithIsDeleted}
        return [
            name
            for name, mixin in mixins.items()
            if self.options.soft_delete is True or issubclass(self.cls, mixin)
        ]

    def _marker(self, name: str) -> SoftDelete | None:
        info = self.model.__pydantic_fields__.get(name)
        rules = rules_of(info) if info is not None else None
        if rules is None:
            self.problems.append(f"{self.name}: soft_delete: {self.unknown(name)}")
            return None
        shape = rules.shape
        if shape.kind is Kind.DATETIME and shape.nullable:
            return SoftDelete(name, timestamp=True)
        if shape.kind is Kind.BOOL and not shape.nullable:
            return SoftDelete(name, timestamp=False)
        self.problems.append(f"{self.name}: soft_delete: {name} must be `datetime | None` or `bool`")
        return None

    def _close_marker(self, marker: SoftDelete) -> None:
        """Let no client write the marker: to set it would delete around the rules of DELETE."""
        info = self.model.__pydantic_fields__[marker.field]
        rules = rules_of(info)
        assert rules is not None, "only a settled field is a marker"
        options = {**rules.spec.options, "readonly": True}
        if options.pop("writeonly", False):
            self.trouble(
                marker.field, "marks deleted records, which no client may write; use hidden for writeonly"
            )
        options.pop("immutable", None)  # readonly says more
        readonly_rules = Rules(rules.shape, FieldSpec(options, rules.spec.unknown))
        info.metadata[:] = [readonly_rules if item is rules else item for item in info.metadata]
        if not marker.timestamp and info.is_required():
            info.default = False
            self.model.model_rebuild(force=True)

    def _locks(self, columns: list[DeclaredField], validator: Validator) -> tuple[Lock, ...]:
        locks: list[Lock] = []
        for item in columns:
            conditions = item.spec.options.get("lock_when", {})
            if not isinstance(conditions, Mapping) or ("lock_when" in item.spec.options and not conditions):
                self.trouble(item.name, "lock_when must map a field to the value that locks the record")
                continue
            for target, values in conditions.items():
                locks += self._locks_on(item.name, target, values, validator)
        return tuple(dict.fromkeys(locks))

    def _locks_on(self, owner: str, target: Any, values: Any, validator: Validator) -> list[Lock]:
        field = self._find(target)
        if field is None:
            self.trouble(owner, f"lock_when: {self.unknown(target)}")
            return []
        if field.kind is Kind.JSON or field.encrypted is not None:
            what = "a JSON column" if field.kind is Kind.JSON else "encrypted"
            self.trouble(owner, f"lock_when: {field.name} is {what} and cannot lock a record")
            return []
        locking_values = values if isinstance(values, (list, tuple, set, frozenset)) else [values]
        return [
            Lock(field.name, self._fit_value(field.name, value, "lock_when value", validator, owner))
            for value in locking_values
        ]

    def _find(self, name: Any) -> FieldMeta | None:
        by_api = {item.api: item for item in self.fields.values()}
        return self.fields.get(name) or by_api.get(name) if isinstance(name, str) else None

    def _check_options(self, soft_delete: SoftDelete | None) -> None:
        if self.options.singleton:
            for item in self.fields.values():
                if item.required:
                    self.trouble(item.name, "is required, but a singleton starts from defaults alone")
        if self.options.restore and soft_delete is None:
            self.problems.append(f"{self.name}: restore needs a soft-delete model")
        if isinstance(self.options.cursor_field, str):
            self._check_cursor(self.options.cursor_field)

    def _check_query(self, soft_delete: SoftDelete | None, locks: tuple[Lock, ...]) -> None:
        if self.options.query is not None:
            fields = self.fields.values()
            for name, text in query_model_problems(self.options, fields, soft_delete, locks):
                self.problems.append(f"{self.name}{f'.{name}' if name else ''}: {text}")

    def _check_cursor(self, name: str) -> None:
        item = self._find(name)
        if item is None:
            self.problems.append(f"{self.name}: cursor_field: {self.unknown(name)}")
        elif not item.sortable:
            self.trouble(item.name, "is the cursor_field, so it must be sortable")
        elif item.nullable:
            self.trouble(item.name, "is the cursor_field, so it cannot be nullable")
        elif locale_rules(item) is not None:
            self.trouble(item.name, "is the cursor_field, so it cannot have translations")

    def _settle_schedules(self, validator: Validator, soft_delete: SoftDelete | None) -> None:
        """Check what times change, and keep the values in the form the changed field gives them."""
        for item in [item for item in self.fields.values() if "scheduled" in item.extra]:
            schedule = item.extra["scheduled"]
            if soft_delete is None and schedule.get("soft_delete"):
                self.trouble(item.name, "scheduled(soft_delete=True) needs a soft-delete model")
            if soft_delete is not None and soft_delete.field == item.name:
                self.trouble(item.name, "marks deleted records and cannot be scheduled")
            settings = dict(schedule)
            if isinstance(schedule.get("where"), Mapping):
                settings["where"] = self._settle_where(item.name, schedule["where"], validator)
            if schedule.get("set_field"):
                settings = self._settle_schedule(item.name, settings, validator, soft_delete)
            if settings != schedule:
                extra = MappingProxyType({**item.extra, "scheduled": MappingProxyType(settings)})
                self.fields[item.name] = replace(item, extra=extra)

    def _settle_where(
        self, owner: str, where: Mapping[Any, Any], validator: Validator
    ) -> Mapping[str, tuple[Any, ...]]:
        """The fields that a time depends on, and their values in the form these fields give them."""
        conditions: dict[str, tuple[Any, ...]] = {}
        for name, values in where.items():
            field = self._find(name)
            if field is None:
                self.trouble(owner, f"scheduled: where: {self.unknown(name)}")
            elif field.kind is Kind.JSON or field.encrypted is not None:
                self.trouble(owner, f"scheduled: where: {field.name} cannot be compared with a value")
            else:
                expected_values = values if isinstance(values, (list, tuple, set, frozenset)) else [values]
                if not expected_values:
                    self.trouble(owner, f"scheduled: where: {field.name} has no values")
                conditions[field.name] = tuple(
                    self._fit_value(field.name, value, "scheduled where value", validator, owner)
                    for value in expected_values
                )
        return MappingProxyType(conditions)

    def _retention(
        self, validator: Validator, soft_delete: SoftDelete | None
    ) -> tuple[tuple[FieldSchedule, ...], str | None]:
        def fit(field: FieldMeta, value: Any) -> Any:
            return self._fit_value(field.name, value, "value of retention", validator)

        declared_fields = DeclaredFields(
            self._find,
            self.unknown,
            fit,
            soft_delete,
            lambda text: self.problems.append(f"{self.name}: {text}"),
            [field for field in self.fields.values() if field.personal],
        )
        return read_retention(self.options, declared_fields)

    def _settle_schedule(
        self, owner: str, schedule: dict[str, Any], validator: Validator, soft_delete: SoftDelete | None
    ) -> dict[str, Any]:
        target = self._find(schedule["set_field"])
        if target is None:
            self.trouble(owner, f"scheduled: {self.unknown(schedule['set_field'])}")
            return schedule
        wrong = list(target_problems(owner, target, soft_delete))
        for text in wrong:
            self.trouble(owner, f"scheduled: {text}")
        for role in ("from_", "to") if not wrong else ():
            if role in schedule:
                text = f"scheduled {role} value"
                schedule[role] = self._fit_value(target.name, schedule[role], text, validator, owner)
        if "from_" in schedule and "to" in schedule and schedule["from_"] == schedule["to"]:
            self.trouble(owner, "scheduled: from_ and to are the same, so nothing would ever change")
        return {**schedule, "set_field": target.name}

    def _indices(self) -> tuple[Index, ...]:
        indices, wrong = index_list(self.options.indices)
        self.problems += [f"{self.name}: {text}" for text in wrong]
        resolved_indices: list[Index] = []
        for index in indices:
            targets = [self._find(name) for name in index.columns]
            self.problems += [
                f"{self.name}: indices: {self.unknown(name)}"
                for name, target in zip(index.columns, targets, strict=True)
                if target is None
            ]
            self.problems += [
                f"{self.name}: indices: {target.name} is encrypted; unique=True and blind_index=True index it"
                for target in targets
                if target is not None and target.encrypted is not None
            ]
            columns = tuple(target.name for target in targets if target is not None)
            if len(set(columns)) < len(columns):
                self.problems.append(f"{self.name}: indices: an index names a field twice")
            resolved_indices.append(replace(index, columns=columns))
        return tuple(resolved_indices)

    def _meta(
        self, validator: Validator, soft_delete: SoftDelete | None, locks: tuple[Lock, ...]
    ) -> ModelMeta:
        table = self.options.table if isinstance(self.options.table, str) else ""
        table = table or table_name(self.name)
        old_table = self.options.renamed_from if isinstance(self.options.renamed_from, str) else None
        fields = tuple(_with_labels(item, table, old_table) for item in self.fields.values())
        return ModelMeta(
            cls=self.cls,
            name=self.name,
            table=table,
            fields=fields,
            relations=MappingProxyType({}),
            options=self.options,
            soft_delete=soft_delete,
            locks=locks,
            indices=self._indices(),
            validator=validator,
            by_name=MappingProxyType({item.name: item for item in fields}),
            by_api=MappingProxyType({item.api: item for item in fields}),
            companions=tuple(_companion(item) for item in fields if item.has_digest),
        )


def _set_loaders(cls: type[Model], fields: Any) -> None:
    loaders = []
    for item in fields:
        if item.load_json is not None:
            loaders.append((item.name, _text_only(item.load_json)))
        elif isinstance(item.type, type) and issubclass(item.type, Enum):
            loaders.append((item.name, item.type))
    cls.__loaders__ = tuple(loaders)


def _text_only(load: Callable[[str | bytes], Any]) -> Callable[[Any], Any]:
    """Values on their way to the database are already what the text would become."""
    return lambda value: load(value) if isinstance(value, (str, bytes)) else value


# A field as the class body declares it, and the `FieldMeta` it becomes.


@dataclass(frozen=True, slots=True)
class DeclaredField:
    """A field as the class body declares it."""

    name: str
    info: FieldInfo
    shape: Shape
    spec: FieldSpec

    @property
    def required(self) -> bool:
        return self.info.is_required()


def field_meta(item: DeclaredField) -> FieldMeta:
    """What a field is once the class has been read; its default and its scope are not checked yet."""
    options, shape = item.spec.options, item.shape
    key_name = options.get("encrypted")
    api = str(options.get("alias", item.name))
    extra = _extra(api, options, shape)
    has_reader = shape.kind is Kind.JSON and not shape.trouble
    return FieldMeta(
        name=item.name,
        api=api,
        column=str(options.get("column", item.name)),
        renamed_from=options.get("renamed_from"),
        kind=shape.kind,
        type=shape.type,
        nullable=shape.nullable,
        required=item.required,
        has_default=not item.required,
        default=None if item.required or item.info.default_factory else item.info.default,
        default_factory=cast(Any, item.info.default_factory),
        enum=shape.enum,
        min=as_bound(shape, options.get("min")),
        max=as_bound(shape, options.get("max")),
        min_length=options.get("min_length"),
        max_length=options.get("max_length"),
        pattern=options.get("pattern"),
        **{flag: bool(options.get(flag)) for flag in FLAGS},
        unique_within=unique_within(options.get("unique")),
        lock_scope=reference_name(options.get("lock_scope")),
        encrypted="default" if key_name is True else key_name or None,
        blind_index=_BLIND_INDEX.get(options.get("blind_index", False), ""),
        labels=(options["encrypted_as"],) if options.get("encrypted_as") else (),
        load_json=(extra[LOCALE].read if LOCALE in extra else json_reader(shape)) if has_reader else None,
        extra=MappingProxyType(extra),
    )


_BLIND_INDEX = {True: "exact", "casefold": "casefold"}


def _with_labels(item: FieldMeta, table: str, old_table: str | None) -> FieldMeta:
    """An encrypted field with what its envelopes are bound to, those of its earlier names included."""
    if item.encrypted is None or item.labels:
        return item
    tables = (table, *((old_table,) if old_table else ()))
    columns = (item.column, *((item.renamed_from,) if item.renamed_from else ()))
    return replace(item, labels=tuple(f"{one}.{column}" for one in tables for column in columns))


def _companion(item: FieldMeta) -> FieldMeta:
    """The column of the digests of a field."""
    old_column = item.renamed_from
    return FieldMeta(
        name=f"{item.name}$hmac",
        api=f"{item.name}$hmac",
        column=item.digest_column,
        kind=Kind.TEXT,
        type=str,
        nullable=True,
        has_default=True,
        readonly=True,
        hidden=True,
        renamed_from=f"{old_column}{DIGEST_SUFFIX}" if old_column else None,
    )


def _extra(name: str, options: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """The declarations of opt-in features, each in a mapping of its own."""
    extra: dict[str, Any] = {name: options[name] for name in ("relation", "on_delete") if name in options}
    if "erased" in options:
        extra["erased"] = options["erased"]
    if "file" in options:
        extra["file"] = file_rules(options["file"], is_list=shape.kind is Kind.JSON)
    if "scheduled" in options:
        extra["scheduled"] = MappingProxyType(dict(options["scheduled"]))
    if shape.type is LocaleString:
        settings = locale_settings(options.get("locale") or True)
        extra[LOCALE] = LocaleRules(name, settings.get("mode"), settings.get("default"))
    return extra
