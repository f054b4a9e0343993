"""Write the docs of catalogue entries into the operations of the routes they act on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from maniflex.openapi import errors
from maniflex.openapi.schema import Schema
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.response import JSON

_COUNTED = {"$ref": "#/components/schemas/PageMeta"}
_CODES = re.compile(r" Codes: (.*)\.$")


def add_entry_docs(operation: Schema, endpoint: Endpoint, docs: Sequence[EntryDocs], *, exempt: bool) -> None:
    """Change one operation; `exempt` when a caller without credentials may use it too."""
    schemes: list[dict[str, list[str]]] = [{name: []} for doc in docs for name in doc.security]
    if schemes and "security" not in operation:
        operation["security"] = [*schemes, *([{}] if exempt else [])]
    for doc in docs:
        _add_parameters(operation, doc.parameters)
        for status, codes in doc.refusals.items():
            _add_refusal(operation["responses"], status, codes, is_empty=endpoint.method == "HEAD")
        if doc.page_meta is not None:
            _replace_page_meta(operation["responses"], doc.page_meta)
        _add_to_successes(operation["responses"], doc)


def statuses_of(docs: Iterable[EntryDocs]) -> set[int]:
    """The statuses of refusals that these docs mention."""
    return {status for doc in docs for status in doc.refusals}


def _add_parameters(operation: Schema, parameters: Iterable[Mapping[str, Any]]) -> None:
    for parameter in parameters:
        existing = operation.setdefault("parameters", [])
        if not any(p.get("name", "").lower() == parameter["name"].lower() for p in existing):
            existing.append(dict(parameter))


def _add_refusal(responses: Schema, status: int, codes: Sequence[str], *, is_empty: bool) -> None:
    [(key, usual)] = errors.list_refusals([status], frozenset(), empty=is_empty).items()
    response = responses.setdefault(key, usual)
    match = _CODES.search(response["description"])
    usual_codes = re.findall(r"`(\w+)`", match[1]) if match else []
    names = ", ".join(f"`{code}`" for code in sorted({*usual_codes, *codes}))
    text = _CODES.sub("", response["description"])
    response["description"] = f"{text} Codes: {names}." if names else text


def _replace_page_meta(responses: Schema, page_meta: Mapping[str, Any]) -> None:
    """Describe the pages of a list as those that are not counted."""
    schema = responses.get("200", {}).get("content", {}).get(JSON, {}).get("schema", {})
    meta = schema.get("properties", {}).get("meta")
    if meta == _COUNTED:
        schema["properties"]["meta"] = dict(page_meta)
    elif meta is not None and _COUNTED in meta.get("anyOf", ()):
        others = [one for one in meta["anyOf"] if one not in (_COUNTED, page_meta)]
        schema["properties"]["meta"] = {"anyOf": [dict(page_meta), *others]}


def _add_to_successes(responses: Schema, doc: EntryDocs) -> None:
    for key, usual in responses.items():
        if key.startswith("2"):
            # A copy: operations share the answers that are always the same.
            response = {**usual, "headers": {**usual.get("headers", {}), **doc.answer_headers}}
            if doc.body is not None and JSON in usual.get("content", {}):
                response["content"] = {**usual["content"], JSON: {"schema": dict(doc.body)}}
            responses[key] = response
    for status, text in doc.answers.items():
        responses[str(status)] = {"description": text, "headers": dict(doc.answer_headers)}
