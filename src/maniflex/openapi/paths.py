"""Endpoints → operations of the description: one for every method and path that is mounted."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from maniflex._limits import Limits
from maniflex._names import snake_case
from maniflex.model.meta import ModelMeta
from maniflex.openapi import errors, texts
from maniflex.openapi.parameters import LIST, ONE, Grammar
from maniflex.openapi.schema import Schema, Schemas, ref
from maniflex.openapi.ways import Ways
from maniflex.pipeline.about import About
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.operation import Operation

JSON = "application/json"
HEADERS = {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}}
_ETAG = {"ETag": {"$ref": "#/components/headers/ETag"}}
_FAILURES = (500, 503, 504)
_BODY = (400, 413, 415, 422)
_ERRORS: dict[Operation, tuple[int, ...]] = {
    Operation.LIST: (400, 414),
    Operation.READ: (400, 404, 414),
    Operation.CREATE: (409, *_BODY),
    Operation.UPDATE: (404, 409, *_BODY),
    Operation.DELETE: (404, 409),
}
_ALLOWED: Schema = {
    "204": {
        "description": "What the path takes.",
        "headers": {
            **HEADERS,
            "Allow": {"description": "The methods of the path.", "schema": {"type": "string"}},
        },
    }
}
_PARAMETER = re.compile(r"\{(\w+)\}")
_VERBS = {
    Operation.LIST: "list",
    Operation.CREATE: "create",
    Operation.READ: "get",
    Operation.UPDATE: "update",
    Operation.DELETE: "delete",
    Operation.HEAD: "head",
    Operation.OPTIONS: "options",
}


class Operations:
    """Describes endpoints, one after another; every operationId is given once."""

    def __init__(
        self,
        ways: Ways,
        limits: Callable[[ModelMeta], Limits],
        schemas: Schemas,
        guarded: Callable[[Endpoint], bool],
    ) -> None:
        self._ways = ways
        self._limits = limits
        self._schemas = schemas
        self._guarded = guarded
        self._by_table = {m.table: m.name for m in schemas.models}
        self._ids: set[str] = set()
        self._grammars: dict[str, Grammar] = {}
        self.statuses: set[int] = set()  # of the refusals that were mentioned

    def describe(self, endpoint: Endpoint) -> Schema:
        """The operation of one endpoint."""
        model = endpoint.model
        if model is not None and _only_named(endpoint.about) and endpoint.path in _paths_of(model):
            return self._of_model(endpoint, model)
        about = endpoint.about or About()
        if endpoint.operation is Operation.OPTIONS and not about.name:
            name = f"options_{_path_name(endpoint)}"
            about = replace(about, name=name, summary=f"Methods of {endpoint.path}")
        return self._other(endpoint, about)

    # -- the routes every model has -----------------------------------------------------------

    def _of_model(self, endpoint: Endpoint, model: ModelMeta) -> Schema:
        one = endpoint.path.endswith("{id}") or bool(model.options.singleton)
        operation = endpoint.operation
        kind = operation
        if operation is Operation.HEAD:
            kind = Operation.READ if one else Operation.LIST
        parameters = self._ids_of(endpoint)
        if kind in (Operation.LIST, Operation.READ):
            names = LIST if kind is Operation.LIST else ONE
            parameters += self._grammar(model).parameters(names)
        locked = bool(model.options.optimistic_lock) and kind in (Operation.UPDATE, Operation.DELETE)
        if locked:
            parameters.append({"$ref": "#/components/parameters/If-Match"})
        about = endpoint.about or About()
        named = {p["name"] for p in parameters if "name" in p} | ({"If-Match"} if locked else set())
        described: Schema = {
            "operationId": self._id(about.name or _model_name(endpoint, model, one)),
            "summary": about.summary or texts.summary(operation, model, one),
            "description": texts.description(operation, model, named),
            "tags": list(about.tags) or [model.name],
        }
        if parameters:
            described["parameters"] = parameters
        if operation in (Operation.CREATE, Operation.UPDATE):
            described["requestBody"] = (
                _body(texts.NEW_RECORD, ref(f"{model.name}Create"))
                if operation is Operation.CREATE
                else _body(texts.CHANGED_FIELDS, ref(f"{model.name}Update"))
            )
        refusals = {*_ERRORS.get(kind, ()), *_FAILURES, *((412,) if locked else ())}
        if model.locks and kind is Operation.DELETE:
            refusals.add(422)
        if model.options.singleton:
            refusals -= {404}
        if operation is Operation.OPTIONS:
            refusals = set()
        answers = self._answers(operation, model)
        codes = errors.QUERY_CODES if kind in (Operation.LIST, Operation.READ) else frozenset()
        if "requestBody" in described:
            codes |= errors.BODY_CODES
        if model.locks:
            codes |= errors.LOCK_CODES
        codes |= frozenset(about.codes)
        return {**described, "responses": answers | self._refusals(endpoint, refusals, codes)}

    def _answers(self, operation: Operation, model: ModelMeta) -> Schema:
        etag = _ETAG if model.options.optimistic_lock else {}
        record = {"type": "object", "required": ["data"], "properties": {"data": ref(model.name)}}
        match operation:
            case Operation.LIST:
                return {"200": _answer(f"A page of {texts.plural(model)}.", self._envelope(model))}
            case Operation.CREATE:
                return {"201": _answer("The record as it was stored.", record, etag)}
            case Operation.READ | Operation.UPDATE:
                return {"200": _answer("The record.", record, etag)}
            case Operation.DELETE:
                return {"204": _answer("The record is deleted.", None)}
            case Operation.OPTIONS:
                return _ALLOWED
            case _:
                return {"200": _answer(texts.head_answer(200), None)}

    def _envelope(self, model: ModelMeta) -> Schema:
        pages: Schema = {"$ref": "#/components/schemas/PageMeta"}
        if model.options.cursor_field:
            pages = {"anyOf": [pages, {"$ref": "#/components/schemas/CursorMeta"}]}
        data = {"type": "array", "items": ref(model.name)}
        return {"type": "object", "required": ["data", "meta"], "properties": {"data": data, "meta": pages}}

    def _grammar(self, model: ModelMeta) -> Grammar:
        if model.name not in self._grammars:
            self._grammars[model.name] = Grammar(model, self._ways, self._limits(model), self._schemas)
        return self._grammars[model.name]

    # -- all other routes ---------------------------------------------------------------------

    def _other(self, endpoint: Endpoint, about: About) -> Schema:
        model = endpoint.model
        described: Schema = {
            "operationId": self._id(about.name or _path_name(endpoint)),
            "summary": about.summary or texts.words(about.name or _path_name(endpoint)),
            "tags": list(about.tags) or [model.name if model is not None else self._tag_of(endpoint)],
        }
        described["description"] = texts.other_description(endpoint, about, described["operationId"])
        if about.deprecated:
            described["deprecated"] = True
        parameters = self._ids_of(endpoint)
        if about.grammar and model is not None:
            exported = endpoint.operation is Operation.EXPORT
            parameters += self._grammar(model).parameters(about.grammar, exported=exported)
        parameters += [dict(parameter) for parameter in about.parameters]
        for name, kind in about.query.items():
            schema = dict(self._schemas.of(kind, incoming=True))
            text = schema.pop("description", "") or f"`{name}` of the query string."
            parameters.append({"name": name, "in": "query", "description": text, "schema": schema})
        if parameters:
            described["parameters"] = parameters
        takes_body = about.request is not None or about.request_schema is not None
        if takes_body:
            sent = dict(about.request_schema or self._schemas.of(about.request, incoming=True))
            described["requestBody"] = _body(about.body_text, sent, required=about.body_required)
        if about.security is not None:
            described["security"] = [dict(s) for s in about.security]
        answers = self._own_answers(endpoint, about)
        refusals = {s for s in self._own_errors(endpoint, about, takes_body) if str(s) not in answers}
        codes = {*about.codes, *(errors.QUERY_CODES if about.grammar or about.query else ())}
        if takes_body:
            codes |= errors.BODY_CODES
        return {**described, "responses": answers | self._refusals(endpoint, refusals, codes)}

    def _tag_of(self, endpoint: Endpoint) -> str:
        """The model whose path an action's own path begins with; actions of no model stand together."""
        return self._by_table.get(endpoint.path.strip("/").split("/")[0], "Actions")

    def _own_answers(self, endpoint: Endpoint, about: About) -> Schema:
        if endpoint.operation is Operation.OPTIONS:
            return _ALLOWED
        if endpoint.method == "HEAD":
            statuses = about.answers or {about.status: {}}
            return {str(s): _answer(texts.head_answer(s), None) for s in sorted(statuses)}
        if about.answers is not None:
            return {
                str(s): _answer(texts.answer(about, s), None if schema is None else dict(schema))
                for s, schema in sorted(about.answers.items())
            }
        text = texts.answer(about, about.status)
        if about.status == 204:
            return {"204": _answer(text, None)}
        if about.media:
            content: Schema = {media: {"schema": {}} for media in about.media}
            return {str(about.status): {"description": text, "headers": HEADERS, "content": content}}
        data = dict(about.data_schema or {})
        if about.data_schema is None and about.response is not None:
            data = self._schemas.of(about.response, incoming=False)
        envelope = {"type": "object", "required": ["data"], "properties": {"data": data}}
        answers: Schema = {str(about.status): _answer(text, envelope)}
        if endpoint.operation is Operation.ACTION and about.response is None and about.data_schema is None:
            answers["204"] = _answer(texts.answer(about, 204), None)
        return answers

    def _own_errors(self, endpoint: Endpoint, about: About, takes_body: bool) -> set[int]:
        if about.answers is not None or endpoint.operation is Operation.OPTIONS:
            return set(about.errors)
        found = {400, *_FAILURES, *about.errors}
        if endpoint.operation is Operation.ACTION:
            found |= {404} if endpoint.method == "GET" else {404, 409}
        if "{" in endpoint.path:
            found.add(404)
        if about.grammar:
            found.add(414)
        if takes_body:
            found |= set(_BODY)
        return found

    # -- parts of both ------------------------------------------------------------------------

    def _refusals(self, endpoint: Endpoint, statuses: set[int], codes: Set[str]) -> Schema:
        if self._guarded(endpoint):
            statuses = statuses | {401, 403}
        head = endpoint.method == "HEAD"
        if not head:
            self.statuses |= statuses
        return errors.listed(statuses, codes, empty=head)

    def _ids_of(self, endpoint: Endpoint) -> list[Schema]:
        return [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": texts.path_parameter(name, endpoint.model),
                "schema": {"type": "string", "minLength": 1},
            }
            for name in _PARAMETER.findall(endpoint.path)
        ]

    def _id(self, wanted: str) -> str:
        plain = re.sub(r"\W+", "_", wanted).strip("_") or "operation"
        taken, number = plain, 1
        while taken in self._ids:
            number += 1
            taken = f"{plain}_{number}"
        self._ids.add(taken)
        return taken


def _paths_of(model: ModelMeta) -> tuple[str, str]:
    return f"/{model.table}", f"/{model.table}/{{id}}"


def _only_named(about: About | None) -> bool:
    """Whether a route is what every model has, though perhaps by another name or with further refusals."""
    if about is None:
        return True
    return about == About(name=about.name, summary=about.summary, tags=about.tags, codes=about.codes)


def _model_name(endpoint: Endpoint, model: ModelMeta, one: bool) -> str:
    single, many = snake_case(model.name), texts.plural_name(model)
    if many == single and endpoint.operation is not Operation.LIST:
        many = f"{single}_list"  # nothing else is called list_…
    named_one = one or endpoint.operation is Operation.CREATE
    return f"{_VERBS.get(endpoint.operation, endpoint.method.lower())}_{single if named_one else many}"


def _path_name(endpoint: Endpoint) -> str:
    """`/posts/export` → `export_posts`, `/posts/{id}/restore` → `restore_post`."""
    segments = [s for s in endpoint.path.split("/") if s and not s.startswith("{")]
    name = "_".join(segments) or "root"
    if endpoint.model is not None and len(segments) > 1:
        one = "{" in endpoint.path
        name = f"{'_'.join(segments[1:])}_{snake_case(endpoint.model.name) if one else endpoint.model.table}"
    return f"head_{name}" if endpoint.method == "HEAD" else name


def _answer(text: str, schema: Schema | None, headers: Mapping[str, Any] | None = None) -> Schema:
    """An answer; without a schema it has no body."""
    content = {} if schema is None else {"content": {JSON: {"schema": schema}}}
    return {"description": text, "headers": {**HEADERS, **(headers or {})}, **content}


def _body(text: str, schema: Schema, *, required: bool = True) -> Schema:
    return {"description": text, "required": required, "content": {JSON: {"schema": schema}}}


def in_order(paths: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Methods in the order people read them."""
    methods: Sequence[str] = ("get", "post", "put", "patch", "delete", "head", "options")
    return {path: {m: found[m] for m in methods if m in found} for path, found in paths.items()}
