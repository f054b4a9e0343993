"""`multipart/form-data` bodies of creates and updates: the fields of a record as parts, files among them."""

from __future__ import annotations

from typing import Any

from maniflex.model.file_field import FileRules, rules_of_field
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.openapi.schema import Schema, Schemas
from maniflex.pipeline.operation import Operation

FORM = "multipart/form-data"
_ANY_FILE = "application/octet-stream"


def form_content(schemas: Schemas, model: ModelMeta, operation: Operation) -> Schema:
    """The form of a create or an update, with the types of its parts."""
    creates = operation is Operation.CREATE
    schema = schemas.create(model) if creates else schemas.update(model)
    properties: dict[str, Any] = {}
    encoding: dict[str, Any] = {}
    for name, plain in schema["properties"].items():
        field = model.by_api[name]
        rules = rules_of_field(field)
        properties[name] = plain if rules is None else _file_part(rules)
        content_type = _content_type(field, rules)
        if content_type:
            encoding[name] = {"contentType": content_type}
    content: Schema = {"schema": {**schema, "properties": properties}}
    return {**content, "encoding": encoding} if encoding else content


def _file_part(rules: FileRules) -> Schema:
    file: Schema = {
        "type": "string",
        "contentMediaType": rules.accept[0] if len(rules.accept) == 1 else _ANY_FILE,
        "description": "A file, or as text the key of one that was uploaded before.",
    }
    return {"type": "array", "items": file, "maxItems": rules.max_count} if rules.is_list else file


def _content_type(field: FieldMeta, rules: FileRules | None) -> str:
    if rules is not None:
        return ", ".join(rules.accept)
    return "application/json" if field.kind is Kind.JSON else ""
