"""What the API description says of the routes of histories, and of reads of the past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maniflex._names import snake_case
from maniflex.model.history_row import HistoryOperation
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.route_docs import RouteDocs

_FAILURES = (500, 503, 504)
_PAGE_META = {"$ref": "#/components/schemas/PageMeta"}


def history_docs(model: ModelMeta, history: ModelMeta) -> RouteDocs:
    """Of the history of one record."""
    name = snake_case(model.name)
    return RouteDocs(
        name=f"list_{name}_history",
        summary=f"The history of a {model.name}",
        description="Every version of the record, newest first; also of one that is marked as deleted.",
        parameters=_list_parameters(),
        answers={200: _page_of(history)},
        answer_texts={200: "A page of versions."},
        errors=(400, 404, 414, *_FAILURES),
        codes=("INVALID_QUERY",),
    )


def list_docs(model: ModelMeta, history: ModelMeta) -> RouteDocs:
    """Of the histories of all records."""
    return RouteDocs(
        name=f"list_{history.table}",
        summary=f"The histories of all {model.table}",
        description="Versions of all records that the caller may read, newest first.",
        parameters=_list_parameters(),
        answers={200: _page_of(history)},
        answer_texts={200: "A page of versions."},
        errors=(400, 414, *_FAILURES),
        codes=("INVALID_QUERY",),
    )


def version_docs(model: ModelMeta, history: ModelMeta, *, flat: bool = False) -> RouteDocs:
    """Of one version."""
    name = snake_case(history.name) if flat else f"{snake_case(model.name)}_version"
    data = {"type": "object", "required": ["data"], "properties": {"data": _schema(history)}}
    return RouteDocs(
        name=f"get_{name}",
        summary=f"One version of a {model.name}",
        description="What changed, who changed it, and the record as it was then, by the names and in the"
        " types that its fields have now. `former` has what belongs to no field of now.",
        parameters=[_SELECT],
        answers={200: data},
        answer_texts={200: "The version."},
        errors=(400, 404, 414, *_FAILURES),
        codes=("INVALID_QUERY",),
    )


def restore_docs(model: ModelMeta) -> RouteDocs:
    """Of the way back to a version."""
    return RouteDocs(
        name=f"restore_{snake_case(model.name)}_version",
        summary=f"Give a {model.name} the values of an earlier version",
        description="Updates the record with the values of that version that a client may set.",
        answer_texts={200: "The record, as it is now."},
        response=model.cls,
        errors=(404, 409, 412, 422) if model.options.optimistic_lock else (404, 409, 422),
    )


def _schema(history: ModelMeta) -> Mapping[str, Any]:
    return {"$ref": f"#/components/schemas/{history.name}"}


def _page_of(history: ModelMeta) -> Mapping[str, Any]:
    data = {"type": "array", "items": _schema(history)}
    return {
        "type": "object",
        "required": ["data", "meta"],
        "properties": {"data": data, "meta": _PAGE_META},
    }


def _query(name: str, text: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": schema}


_SELECT = _query("select", "Only these fields of a version, divided by commas.", {"type": "string"})


def _list_parameters() -> Sequence[Mapping[str, Any]]:
    fields = "`record_id`, `operation`, `actor_id`, `request_id`, `source`, `version` and `timestamp`"
    operations = ", ".join(f"`{operation}`" for operation in HistoryOperation)
    number = {"type": "integer", "minimum": 1}
    return (
        _query("page", "Which page, counted from 1.", {**number, "default": 1}),
        _query("limit", "How many versions a page has.", {**number, "default": 20}),
        _query(
            "filter",
            f"Only versions for which `field:operator:value` holds, by {fields}; operations are {operations}",
            {"type": "array", "items": {"type": "string"}},
        ),
        _query("sort", "`version` or `timestamp`, with `:desc` to turn the order round.", {"type": "string"}),
        _SELECT,
    )
