"""The whole OpenAPI 3.1 document of a sealed server, the same bytes for the same declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from maniflex.config import Config, Limits
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.model.texts import localized_fields
from maniflex.openapi import errors
from maniflex.openapi import errors as texts
from maniflex.openapi.operations import HEADERS, OperationWriter, in_order, is_usual
from maniflex.openapi.parameters import Reachable
from maniflex.openapi.schema import Schema, Schemas, documentation
from maniflex.pipeline.entry import EntryDocs
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import JSON
from maniflex.pipeline.routes import Endpoint
from maniflex.pipeline.rules.transforms import Computed

_PAGE_META: Schema = {
    "type": "object",
    "description": "Where in the list this page is.",
    "required": ["total", "page", "limit", "pages"],
    "properties": {
        name: {"type": "integer", "minimum": low}
        for name, low in (("total", 0), ("page", 1), ("limit", 1), ("pages", 0))
    },
}
_CURSOR_META: Schema = {
    "type": "object",
    "description": "Where the walk goes on; it is at its end when `has_more` is false.",
    "required": ["limit", "has_more"],
    "properties": {
        "limit": {"type": "integer", "minimum": 1},
        "has_more": {"type": "boolean"},
        "next_cursor": {"type": "string"},
        "prev_cursor": {"type": "string"},
    },
}
_COMPONENT_HEADERS: Schema = {
    "ETag": {
        "description": "The version of the record, for `If-Match`.",
        "schema": {"type": "string"},
    },
    "X-Request-Id": {
        "description": "The id of the request: the one that was sent, or a new one. It is in the log.",
        "schema": {"type": "string"},
    },
}
_LANGUAGE_HEADER: Schema = {
    "Content-Language": {
        "description": "The language that was asked for, or the usual one.",
        "schema": {"type": "string"},
    }
}
_PARAMETERS: Schema = {
    "If-Match": {
        "name": "If-Match",
        "in": "header",
        "description": "Do it only if the record still has this version (its `ETag`).",
        "schema": {"type": "string"},
    }
}


class Document:
    """Makes the document of one server."""

    def __init__(
        self,
        config: Config,
        models: Sequence[ModelMeta],
        computed: Mapping[type[Model], Sequence[Computed]],
        is_guarded: Callable[[Endpoint], bool],
        home: Callable[[ModelMeta], object],
        title: str = "",
        entry_docs: Callable[[Endpoint], Sequence[EntryDocs]] = lambda endpoint: (),
        security: Callable[[Endpoint], Sequence[Schema] | None] = lambda endpoint: None,
    ) -> None:
        self._config = config
        self._models = models
        self._computed = computed
        self._is_guarded = is_guarded
        self._home = home
        self._title = title
        self._entry_docs = entry_docs
        self._security = security

    def make(self, endpoints: Iterable[tuple[str, Endpoint]]) -> dict[str, Any]:
        """The document of these endpoints, each with the prefix it is mounted under."""
        visible = [(prefix, e) for prefix, e in endpoints if self._is_shown(e)]
        schemas = Schemas(self._models)
        reachable = Reachable({m.name: m for m in self._models}, self._home)
        operations = OperationWriter(reachable, self._limits, schemas, self._is_guarded)
        paths: dict[str, dict[str, Any]] = {}
        tags: dict[str, str] = {}
        schemes: Schema = {}
        for prefix, endpoint in visible:
            operation = operations.describe(endpoint)
            docs = self._entry_docs(endpoint)
            if docs:
                add_entry_docs(operation, endpoint, docs)
                operations.statuses |= statuses_of(docs)
                schemes.update({name: dict(scheme) for doc in docs for name, scheme in doc.security.items()})
            alternatives = self._security(endpoint)
            if alternatives is not None:
                operation.setdefault("security", alternatives)
            codes = codes_of(operation)
            if codes:
                operation["x-error-codes"] = codes
            path = (prefix + endpoint.path).replace("...}", "}")
            paths.setdefault(path, {})[endpoint.method.lower()] = operation
            for tag in operation["tags"]:
                own = endpoint.operation is Operation.ACTION  # its words mean what the application says
                tags[tag] = tags.get(tag) or ("" if own else texts.TAGS.get(tag, ""))
        self._add_models(schemas, [e for _, e in visible])
        self._drop_internal(schemas, paths)
        tags.update({m.name: documentation(m) for m in self._models if m.name in tags})
        return {
            "openapi": "3.1.0",
            "info": self._info(),
            "servers": [{"url": "/"}],
            "tags": _in_order_of_registration(tags),
            "paths": in_order(paths),
            "components": self._components(schemas, operations.statuses)
            | ({"securitySchemes": schemes} if schemes else {}),
        }

    def _is_shown(self, endpoint: Endpoint) -> bool:
        if endpoint.about is not None and endpoint.about.hidden:
            return False
        return self._config.openapi_all_methods or endpoint.method not in ("HEAD", "OPTIONS")

    def _info(self) -> Schema:
        title = self._config.openapi_title or self._config.service_name or self._title or "API"
        return {"title": title, "version": self._config.openapi_version}

    def _add_models(self, schemas: Schemas, endpoints: Iterable[Endpoint]) -> None:
        offers = {
            (e.model.name, e.operation) for e in endpoints if e.model is not None and is_usual(e, e.model)
        }
        for model in self._models:
            schemas.components[model.name] = schemas.record(model, self._computed.get(model.cls, ()))
            if (model.name, Operation.CREATE) in offers:
                schemas.components[f"{model.name}Create"] = schemas.create(model)
            if (model.name, Operation.UPDATE) in offers:
                schemas.components[f"{model.name}Update"] = schemas.update(model)
        schemas.components |= {
            "ErrorResponse": errors.ERROR,
            "PageMeta": _PAGE_META,
            "CursorMeta": _CURSOR_META,
        }

    def _drop_internal(self, schemas: Schemas, paths: Mapping[str, Any]) -> None:
        """A model without routes is for code alone, unless an action tells of it."""
        for model in self._models:
            if model.options.headless:
                schema = schemas.components.pop(model.name)
                if model.name in _referred_to([paths, schemas.components]):
                    schemas.components[model.name] = schema

    def _components(self, schemas: Schemas, statuses: Iterable[int]) -> Schema:
        return {
            "schemas": dict(sorted(schemas.components.items())),
            "responses": {errors.name(s): errors.response(s, HEADERS) for s in sorted(statuses)},
            "parameters": _PARAMETERS,
            "headers": {**_COMPONENT_HEADERS, **self._language_header()},
        }

    def _language_header(self) -> Schema:
        return _LANGUAGE_HEADER if any(localized_fields(model) for model in self._models) else {}

    def _limits(self, model: ModelMeta) -> Limits:
        return model.options.limits or self._config.limits


def _in_order_of_registration(tags: Mapping[str, str]) -> list[Schema]:
    """Models and actions as they were registered; after them what every application has."""
    last = {tag: place for place, tag in enumerate(texts.TAGS, 1)}
    names = sorted(tags, key=lambda tag: last.get(tag, 0) if tags[tag] == texts.TAGS.get(tag) else 0)
    return [{"name": n, "description": tags[n]} if tags[n] else {"name": n} for n in names]


def _referred_to(node: Any) -> set[str]:
    """The names of all schemas that references lead to."""
    if isinstance(node, Mapping):
        names = {str(node["$ref"]).rpartition("/")[2]} if "$ref" in node else set()
        return names.union(*(_referred_to(item) for item in node.values()))
    if isinstance(node, list | tuple):
        return set().union(*(_referred_to(item) for item in node))
    return set()


# Write the docs of catalogue entries into the operations of the routes they act on.


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
