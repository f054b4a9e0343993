"""A field as the class body declares it, and the `FieldMeta` it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from pydantic.fields import FieldInfo

from maniflex.model.annotations import Shape
from maniflex.model.checks import as_bound, locale_settings, unique_within
from maniflex.model.field import FLAGS, FieldSpec, LocaleString
from maniflex.model.file_field import file_rules
from maniflex.model.meta import FieldMeta, Kind
from maniflex.model.relation import reference_name
from maniflex.model.value_rules import json_reader


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
    return FieldMeta(
        name=item.name,
        api=str(options.get("alias", item.name)),
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
        load_json=json_reader(shape) if shape.kind is Kind.JSON and not shape.trouble else None,
        extra=MappingProxyType(_extra(options, shape)),
    )


def _extra(options: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """The declarations of opt-in features, each in a mapping of its own."""
    extra: dict[str, Any] = {name: options[name] for name in ("relation", "on_delete") if name in options}
    if "file" in options:
        extra["file"] = file_rules(options["file"], is_list=shape.kind is Kind.JSON)
    if "scheduled" in options:
        extra["scheduled"] = MappingProxyType(dict(options["scheduled"]))
    if shape.type is LocaleString:
        extra["locale"] = MappingProxyType(locale_settings(options.get("locale") or True))
    return extra
