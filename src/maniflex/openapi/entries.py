"""Write the docs of catalogue entries into the operations of the routes they act on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from maniflex.openapi import errors
from maniflex.openapi.operations import HEADERS
from maniflex.openapi.schema import Schema
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.response import JSON

_COUNTED = {"$ref": "#/components/schemas/PageMeta"}


def add_entry_docs(operation: Schema, endpoint: Endpoint, docs: Sequence[EntryDocs]) -> None:
    """Change one operation."""
    is_head = endpoint.method == "HEAD"
    for doc in docs:
        _add_parameters(operation, doc.parameters)
        # A copy: operations share the answers that are always the same.
        responses = operation["responses"] = dict(operation["responses"])
        for status, codes in doc.refusals.items():
            headers = doc.refusal_headers.get(status, {})
            responses[str(status)] = _refusal(responses.get(str(status)), status, codes, headers, is_head)
        if doc.page_meta is not None:
            _replace_page_meta(responses, doc.page_meta)
        _add_to_successes(responses, doc)
        operation["responses"] = dict(sorted(responses.items()))


def statuses_of(docs: Iterable[EntryDocs]) -> set[int]:
    """The statuses of refusals that these docs mention."""
    return {status for doc in docs for status in doc.refusals}


def codes_of(operation: Schema) -> Schema:
    """The codes of an operation's refusals by status, for programs."""
    codes = {status: errors.codes_in(one["description"]) for status, one in operation["responses"].items()}
    return {status: names for status, names in codes.items() if names}


def _add_parameters(operation: Schema, parameters: Iterable[Mapping[str, Any]]) -> None:
    for parameter in parameters:
        existing = operation.setdefault("parameters", [])
        if not any(p.get("name", "").lower() == parameter["name"].lower() for p in existing):
            existing.append(dict(parameter))


def _refusal(
    existing: Schema | None, status: int, codes: Sequence[str], headers: Mapping[str, Any], is_head: bool
) -> Schema:
    """The refusal with further codes and headers; a reference to the usual one where nothing else differs."""
    usual = existing or {**errors.usual_form(status, is_empty=is_head), "description": errors.meaning(status)}
    text = errors.with_further_codes(usual["description"], codes)
    own_headers = {**usual.get("headers", {}), **headers}
    if not own_headers:
        return {**usual, "description": text}
    whole = {**errors.response(status, {**HEADERS, **own_headers}), "description": text}
    if "$ref" not in usual:  # of a form of its own, or without a body
        whole["content"] = usual.get("content")
    return {name: value for name, value in whole.items() if value is not None}


def _replace_page_meta(responses: Schema, page_meta: Mapping[str, Any]) -> None:
    """Describe the pages of a list as those that are not counted."""
    # A copy: operations share the answers that are always the same.
    responses["200"] = deepcopy(responses.get("200", {}))
    schema = responses["200"].get("content", {}).get(JSON, {}).get("schema", {})
    meta = schema.get("properties", {}).get("meta")
    if meta == _COUNTED:
        schema["properties"]["meta"] = dict(page_meta)
    elif meta is not None and _COUNTED in meta.get("anyOf", ()):
        others = [one for one in meta["anyOf"] if one not in (_COUNTED, page_meta)]
        schema["properties"]["meta"] = {"anyOf": [dict(page_meta), *others]}


def _add_to_successes(responses: Schema, doc: EntryDocs) -> None:
    if doc.status is not None:
        success = responses.pop("200", None) or responses["204"]
        responses.pop("204", None)
        if doc.status == 204:
            success = {name: value for name, value in success.items() if name != "content"}
        responses[str(doc.status)] = success
    for key, usual in responses.items():
        if key.startswith("2"):
            response = {**usual, "headers": {**usual.get("headers", {}), **doc.answer_headers}}
            if doc.body is not None and JSON in usual.get("content", {}):
                response["content"] = {**usual["content"], JSON: {"schema": dict(doc.body)}}
            responses[key] = response
    for status, text in doc.answers.items():
        responses[str(status)] = {"description": text, "headers": dict(doc.answer_headers)}
