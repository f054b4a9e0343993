"""Models, fields and annotated types → JSON Schema 2020-12, the dialect of OpenAPI 3.1.

The only place that decides what of a model a description shows: hidden fields appear nowhere,
writeonly ones only in request bodies, and a model inside an annotation is always a reference to the
schema made here, never one pydantic would make of all its fields.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import core_schema, to_jsonable_python

from maniflex._json import INT_MAX, INT_MIN
from maniflex._locales import MOST_LOCALES
from maniflex.model.base import Model
from maniflex.model.class_body import field_texts
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind, RelationMeta
from maniflex.model.texts import LOCALE, locale_rules, localized_fields
from maniflex.pipeline.rules.transforms import Computed
from maniflex.query.query import shows

Schema = dict[str, Any]
PREFIX = "#/components/schemas/"
_MODEL = "x-model"
_LARGEST = 1.7976931348623157e308
_DECIMAL = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?$"
_UNSIGNED = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?$"
_TIME = r"^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?$"
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_PYTHON_ONLY = re.compile(r"\(\?[P#(aiLmsux-]|\(\?<[=!]|\\[AZpP]|[*+?}]\+|\(\?>")


def ref(name: str) -> Schema:
    """A reference to a schema of the document."""
    return {"$ref": PREFIX + name}


def nullable(schema: Schema) -> Schema:
    """The same schema, with null as one more value."""
    kind = schema.get("type")
    if kind is None:
        return schema if schema == {} else {"anyOf": [schema, {"type": "null"}]}
    with_null = {**schema, "type": [*([kind] if isinstance(kind, str) else kind), "null"]}
    if "enum" in schema:
        with_null["enum"] = [*schema["enum"], None]
    return with_null


class Schemas:
    """The schemas of a document, each under a name of its own."""

    def __init__(self, models: Iterable[ModelMeta]) -> None:
        self._models = {m.name: m for m in models}
        self.models = tuple(self._models.values())
        self.components: dict[str, Schema] = {}
        self._origins: dict[str, Schema] = {}  # as pydantic made them, to know the same type again
        own = (f"{name}{end}" for name in self._models for end in ("", "Create", "Update", "Filter"))
        self._reserved = {*own, "ErrorResponse", "PageMeta", "CursorMeta"}

    # -- models --------------------------------------------------------------------------------

    def record(self, model: ModelMeta, computed: Sequence[Computed] = ()) -> Schema:
        """What an answer shows of a record. `select` may leave anything out, so nothing is required."""
        fields = [f for f in model.fields if f.visible]
        texts = field_texts(model.cls)
        properties = {f.api: _with_text(self.field(f, incoming=False), texts.get(f.name)) for f in fields}
        for text_field, rules in localized_fields(model):
            if text_field.visible and rules.mode == "split":
                properties[rules.companion] = _companion(text_field)
        for item in computed:
            properties[item.name] = {**self._computed_schema(item), "readOnly": True}
        for relation in model.relations.values():
            if relation.name not in properties and shows(model, relation, self._models):
                properties[relation.name] = self._relation_schema(
                    relation.kind, relation.target, relation.name
                )
        return _with_description(model, {"type": "object", "properties": properties})

    def event(self, model: ModelMeta, fields: Sequence[FieldMeta]) -> Schema:
        """The data of the events of a model; rules may hide any of it, so nothing is required."""
        texts = field_texts(model.cls)
        properties = {f.api: _with_text(self.field(f, incoming=False), texts.get(f.name)) for f in fields}
        schema: Schema = {"type": "object", "properties": properties}
        name = self._name(f"{model.name}Event", schema, incoming=False)
        self.components[name] = schema
        return ref(name)

    def create(self, model: ModelMeta) -> Schema:
        """What a create body holds."""
        fields = [f for f in model.fields if _open_to_clients(f)]
        texts = field_texts(model.cls)
        schema: Schema = {
            "type": "object",
            "properties": {
                f.api: _with_text(self.field(f, incoming=True, creating=True), texts.get(f.name))
                for f in fields
            },
        }
        schema["properties"].update(_companions(model, fields))
        schema["properties"].update(self._nested_properties(model, creating=True))
        # A text may come by its other names, and a key by a nested record.
        nested_keys = {
            r.key for r in model.relations.values() if r.nested and r.kind is RelationKind.BELONGS_TO
        }
        required_names = [
            f.api
            for f in fields
            if model.asks_for(f) and locale_rules(f) is None and f.name not in nested_keys
        ]
        return {**schema, "required": required_names} if required_names else schema

    def update(self, model: ModelMeta) -> Schema:
        """What a patch body holds: what it leaves out stays as it is."""
        fields = [f for f in model.fields if _open_to_clients(f) and not f.immutable]
        texts = field_texts(model.cls)
        properties = {f.api: _with_text(self.field(f, incoming=True), texts.get(f.name)) for f in fields}
        contents = self._nested_properties(model, creating=False)
        return {"type": "object", "properties": {**properties, **_companions(model, fields), **contents}}

    def _nested_properties(self, model: ModelMeta, *, creating: bool) -> dict[str, Schema]:
        """The relations whose records a body may hold."""
        relations = (r for r in model.relations.values() if r.nested and r.target in self._models)
        return {r.name: self._nested_schema(model, r, creating=creating) for r in relations}

    def _nested_schema(self, model: ModelMeta, relation: RelationMeta, *, creating: bool) -> Schema:
        # References and no copies: the records of a body may hold those of the model they came from.
        new = self._nested_record(relation, creating=True)
        if relation.kind is RelationKind.BELONGS_TO:
            if creating:
                return {**new, "description": "The record that this one belongs to, made along with it."}
            change = self._nested_record(relation, creating=False)
            forms = [_object({"create": new}, "create"), _object({"update": change}, "update")]
            return {"oneOf": forms, "description": "Another record to belong to, or a change of this one."}
        news, ids = {"type": "array", "items": new}, {"type": "array", "items": {"type": "string"}}
        if relation.kind is RelationKind.MANY_TO_MANY:
            parts = {"link": ids, "create": news} | ({} if creating else {"unlink": ids})
            return {**_object(parts), "description": "Links to records, by their ids or made along."}
        if creating:
            return {**news, "description": "Records that belong to this one, made along with it."}
        with_id = _object({"id": {"type": "string"}}, "id", closed=False)
        changes = {"allOf": [self._nested_record(relation, creating=False), with_id]}
        parts = {"create": news, "update": {"type": "array", "items": changes}, "delete": ids}
        return {**_object(parts), "description": "What is done to the records that belong to this one."}

    def _nested_record(self, relation: RelationMeta, *, creating: bool) -> Schema:
        """A reference to the body of the model; of one that is created here, its key is settled."""
        target = self._models[relation.target]
        key = relation.key if relation.kind is RelationKind.HAS_MANY and creating else None
        suffix = "Create" if creating else "Update"
        name = f"{target.name}{suffix}"
        if key is not None:
            name += "Without" + key.title().replace("_", "")
        if name not in self.components:
            self.components[name] = {}  # while it is made: a circle comes back here
            schema = self.create(target) if creating else self.update(target)
            if key is not None:
                schema = _without_key(schema, target.by_name[key].api)
            self.components[name] = schema
        return ref(name)

    def field(self, field: FieldMeta, *, incoming: bool, creating: bool = False) -> Schema:
        """One field; `incoming` is what a client may send, otherwise what it gets."""
        is_json = field.kind is Kind.JSON
        if locale_rules(field) is not None:
            schema = _text(field, incoming=incoming)
        else:
            schema = self.of(field.type, incoming=incoming) if is_json else _scalar(field, incoming)
        if field.is_text_like:
            schema = {**self.of(field.type, incoming=incoming), **schema}
        if field.nullable:
            schema = nullable(schema)
        if field.writeonly:
            schema = {**schema, "writeOnly": True}
        if not incoming and (field.readonly or field.name in ("id", "created_at", "updated_at")):
            schema = {**schema, "readOnly": True}
        if field.encrypted is not None:
            schema = {**schema, "x-encrypted": True}
        if creating and field.has_default and field.default_factory is None and not field.secret:
            with suppress(ValueError):  # a default that JSON has no word for is left unsaid
                schema = {**schema, "default": to_jsonable_python(field.default, bytes_mode="base64")}
        return schema

    def _relation_schema(self, kind: RelationKind, target: str, name: str) -> Schema:
        notes = {"description": f"There with `include={name}`.", "readOnly": True}
        if kind is RelationKind.BELONGS_TO:
            return {**ref(target), **notes}
        return {"type": "array", "items": ref(target), **notes}

    def _computed_schema(self, computed: Computed) -> Schema:
        try:
            annotation = get_type_hints(computed.fn).get("return")
        except Exception:  # names of a function's annotations need not exist when it runs
            return {}
        if computed.batch:
            annotation = (get_args(annotation) or (None,))[0] if get_origin(annotation) else None
        return {} if annotation is None else self.of(annotation, incoming=False)

    # -- types ---------------------------------------------------------------------------------

    def of(self, annotation: Any, *, incoming: bool) -> Schema:
        """Any type pydantic knows; its named parts become schemas of the document."""
        mode: JsonSchemaMode = "validation" if incoming else "serialization"
        try:
            root = TypeAdapter(annotation).json_schema(
                mode=mode, ref_template=PREFIX + "{model}", schema_generator=_Generator
            )
        except Exception:  # a type without a JSON form: the description says nothing of it
            return {}
        parts: dict[str, Schema] = root.pop("$defs", {})
        names: dict[str, str] = {}
        for name in sorted(parts):
            if _MODEL not in parts[name]:
                names[name] = self._name(name, parts[name], incoming)
        for name, new in names.items():
            self.components[new] = self._resolve(parts[name], names, parts, incoming)
        schema: Schema = self._resolve(root, names, parts, incoming)
        return schema

    def _name(self, name: str, schema: Schema, incoming: bool) -> str:
        """A free name for a type: its own, or one that tells what it is for, or a numbered one."""
        plain = re.sub(r"\W+", "_", name).strip("_") or "Type"
        candidates = [plain, f"{plain}{'Input' if incoming else 'Output'}"]
        candidates += [f"{plain}{n}" for n in range(2, 1000)]
        for candidate in candidates:
            if candidate in self._reserved:
                continue
            if self._origins.setdefault(candidate, schema) == schema:
                return candidate
        raise AssertionError(name)

    def _resolve(
        self, part: Any, names: Mapping[str, str], parts: Mapping[str, Schema], incoming: bool
    ) -> Any:
        """The schema as it goes into the document: real names, models by reference, no titles."""
        if isinstance(part, list):
            return [self._resolve(item, names, parts, incoming) for item in part]
        if not isinstance(part, dict):
            return part
        if _MODEL in part:
            return self._model(part[_MODEL], incoming)
        target = str(part.get("$ref", "")).removeprefix(PREFIX)
        if target in parts and _MODEL in parts[target]:
            return self._model(parts[target][_MODEL], incoming)
        if target in names:
            return {**part, "$ref": PREFIX + names[target]}
        has_title = isinstance(part.get("title"), str)
        return {
            key: (
                {name: self._resolve(item, names, parts, incoming) for name, item in value.items()}
                if key == "properties"
                else self._resolve(value, names, parts, incoming)
            )
            for key, value in part.items()
            if not (key == "title" and has_title)
        }

    def _model(self, name: str, incoming: bool) -> Schema:
        if name not in self._models:
            return {"type": "object"}
        if not incoming:
            return ref(name)
        self.components.setdefault(f"{name}Create", self.create(self._models[name]))
        return ref(f"{name}Create")


class _Generator(GenerateJsonSchema):
    """pydantic's, but a model is only named: what of it is shown is decided above."""

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        if issubclass(schema["cls"], Model):
            return {_MODEL: schema["cls"].__name__}
        return super().model_schema(schema)


def _object(properties: dict[str, Schema], *required: str, closed: bool = True) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = [*required]
    return {**schema, "additionalProperties": False} if closed else schema


def _without_key(schema: Schema, name: str) -> Schema:
    """The body of a record whose key is the record around it."""
    rest = {key: value for key, value in schema.items() if key != "required"}
    rest["properties"] = {key: value for key, value in schema["properties"].items() if key != name}
    names = [key for key in schema.get("required", ()) if key != name]
    return {**rest, "required": names} if names else rest


def _open_to_clients(field: FieldMeta) -> bool:
    return not (field.readonly or field.hidden or field.name == "id")


def _with_text(schema: Schema, text: str | None) -> Schema:
    """The schema of a field with what the class says of it, before what the schema says itself."""
    own = schema.get("description")
    return schema if not text else {**schema, "description": f"{text}\n\n{own}" if own else text}


def _with_description(model: ModelMeta, schema: Schema) -> Schema:
    text = documentation(model)
    return {**schema, "description": text} if text else schema


def documentation(model: ModelMeta) -> str:
    """What the class says of itself; not what it inherits."""
    own = model.cls.__dict__.get("__doc__")
    return inspect.cleandoc(own) if own else ""


_LOCALE = "^[A-Za-z]{2,8}(?:[-_][A-Za-z0-9]{1,8})*$"


def _text(field: FieldMeta, *, incoming: bool) -> Schema:
    """A text with translations: what is shown of it, or what a client may send."""
    rules = field.extra[LOCALE]
    text: Schema = {"type": "string"}
    if incoming:
        default = rules.locale_of_bare_text("")
        own = (
            f"A text in the language of the request, or else in `{default}`; or a map with all translations."
        )
        return {"oneOf": [text, _texts(field, incoming=True)], "description": own}
    if rules.mode == "dynamic":
        return {"anyOf": [text, _texts(field)], "description": "A text with `locale=`, otherwise the map."}
    return {
        **text,
        "description": "The text in the language of the request, or the one that stands in for it.",
    }


def _texts(field: FieldMeta, *, incoming: bool = False) -> Schema:
    item: Schema = {"type": "string"}
    if incoming and (limits := {**_lengths(field), **_pattern(field)}):
        item = {"anyOf": [{**item, **limits}, {"type": "string", "maxLength": 0}]}
    schema: Schema = {"type": "object", "propertyNames": {"pattern": _LOCALE}, "additionalProperties": item}
    return {**schema, "maxProperties": MOST_LOCALES} if incoming else schema


def _companion(field: FieldMeta, *, incoming: bool = False) -> Schema:
    schema = _texts(field, incoming=incoming)
    schema = nullable(schema) if field.nullable else schema
    if field.readonly and not incoming:
        schema = {**schema, "readOnly": True}
    return {**schema, "description": f"All translations of `{field.api}`, by locale."}


def _companions(model: ModelMeta, fields: Sequence[FieldMeta]) -> Schema:
    """The other names of texts in bodies: all translations at once."""
    return {
        rules.companion: _companion(field, incoming=True)
        for field, rules in localized_fields(model)
        if field in fields
    }


def _scalar(field: FieldMeta, incoming: bool) -> Schema:
    if field.enum is not None:
        values = [to_jsonable_python(value) for value in field.enum]
        return {"type": "integer" if field.kind is Kind.INT else "string", "enum": values}
    match field.kind:
        case Kind.TEXT:
            return {"type": "string", **_lengths(field), **_pattern(field)}
        case Kind.INT:
            low = INT_MIN if field.min is None else max(INT_MIN, math.ceil(field.min))
            high = INT_MAX if field.max is None else min(INT_MAX, math.floor(field.max))
            return {"type": "integer", "format": "int64", "minimum": low, "maximum": high}
        case Kind.FLOAT:
            low, high = (None if b is None else float(b) for b in (field.min, field.max))
            return {
                "type": "number",
                "format": "double",
                "minimum": -_LARGEST if low is None else low,
                "maximum": _LARGEST if high is None else high,
            }
        case Kind.DECIMAL:
            return _decimal(field) if incoming else {"type": "string", "format": "decimal"}
        case Kind.BOOL:
            return {"type": "boolean"}
        case Kind.DATETIME:
            return {"type": "string", "format": "date-time"}
        case Kind.DATE:
            return {"type": "string", "format": "date"}
        case Kind.TIME:
            return {"type": "string", "format": "time-local", "pattern": _TIME}
        case Kind.UUID:
            return {"type": "string", "format": "uuid"}
        case Kind.BYTES:
            sizes = {name: -(-size // 3) * 4 for name, size in _lengths(field).items()}
            return {"type": "string", "contentEncoding": "base64", "pattern": _BASE64, **sizes}
        case Kind.JSON:  # by its annotation (`Schemas.of`)
            return {}


def _decimal(field: FieldMeta) -> Schema:
    """A decimal can be sent as text, which keeps every digit, or as a number."""
    is_unsigned = field.min is not None and field.min >= 0
    schema: Schema = {
        "type": ["string", "number"],
        "format": "decimal",
        "maxLength": 300,
        "pattern": _UNSIGNED if is_unsigned else _DECIMAL,
    }
    for name, limit in (("minimum", field.min), ("maximum", field.max)):
        if limit is not None:
            schema[name] = int(limit) if Decimal(limit) == int(limit) else float(limit)
    return schema


def _lengths(field: FieldMeta) -> dict[str, int]:
    sizes = {"minLength": field.min_length, "maxLength": field.max_length}
    return {name: size for name, size in sizes.items() if size is not None}


def _pattern(field: FieldMeta) -> Schema:
    """The pattern, where it means the same to other languages; otherwise in words."""
    if field.pattern is None:
        return {}
    if _PYTHON_ONLY.search(field.pattern):
        return {"description": f"Matches the Python pattern `{field.pattern}`."}
    return {"pattern": field.pattern}
