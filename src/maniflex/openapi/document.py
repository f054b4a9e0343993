"""The OpenAPI 3.1 document of a sealed server: the same bytes for the same declarations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import replace
from typing import Any

from maniflex._names import snake_case
from maniflex._tables import PartialTable
from maniflex.background.feed.described import DescribedType
from maniflex.config import Config, Limits
from maniflex.model.base import Model
from maniflex.model.field import FileRules, file_fields, rules_of_field
from maniflex.model.history_row import is_versioned
from maniflex.model.meta import FieldMeta, Kind, ModelMeta
from maniflex.model.texts import localized_fields
from maniflex.openapi import errors, words
from maniflex.openapi.parameters import AS_OF, LIST, ONE, Grammar, Reachable
from maniflex.openapi.schema import Schema, Schemas, documentation, ref
from maniflex.openapi.webhooks import describe_webhook
from maniflex.pipeline.entry import EntryDocs
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import JSON
from maniflex.pipeline.routes import Endpoint, RouteDocs
from maniflex.pipeline.rules.transforms import Computed

# Endpoints → operations of the description: one for every method and path that is mounted.


HEADERS = {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}}
_ETAG = {"ETag": {"$ref": "#/components/headers/ETag"}}
_FAILURES = (500, 503, 504)
_BODY = (400, 413, 415, 422)
_ERRORS: PartialTable[Operation, tuple[int, ...]] = PartialTable(
    {
        Operation.LIST: (400, 414),
        Operation.READ: (400, 404, 414),
        Operation.CREATE: (409, *_BODY),
        Operation.UPDATE: (404, 409, *_BODY),
        Operation.DELETE: (404, 409),
    },
    others="are refused as the docs of their routes say",
)
_ALLOWED: Schema = {
    "204": {
        "description": "What the path takes.",
        "headers": {
            **HEADERS,
            "Allow": {"description": "The methods of the path.", "schema": {"type": "string"}},
        },
    }
}
_PARAMETER = re.compile(r"\{(\w+)(?:\.\.\.)?\}")
_VERBS = PartialTable(
    {
        Operation.LIST: "list",
        Operation.CREATE: "create",
        Operation.READ: "get",
        Operation.UPDATE: "update",
        Operation.DELETE: "delete",
        Operation.HEAD: "head",
        Operation.OPTIONS: "options",
    },
    others="are named by their methods",
)


def _error_codes(model: ModelMeta, kind: Operation, *, has_body: bool, names_files: bool) -> frozenset[str]:
    """The codes of refusals that a usual route of a model answers with."""
    codes: frozenset[str] = errors.QUERY_CODES if kind in (Operation.LIST, Operation.READ) else frozenset()
    if codes and is_versioned(model.options):
        codes |= errors.PAST_CODES
    if has_body:
        codes |= errors.BODY_CODES
    if model.locks:
        codes |= errors.LOCK_CODES
    return codes | errors.NAMED_FILE_CODES if names_files else codes


class OperationWriter:
    """Describes endpoints, one after another; every operationId is given once."""

    def __init__(
        self,
        reachable: Reachable,
        limits: Callable[[ModelMeta], Limits],
        schemas: Schemas,
        is_guarded: Callable[[Endpoint], bool],
    ) -> None:
        self._reachable = reachable
        self._limits = limits
        self._schemas = schemas
        self._is_guarded = is_guarded
        self._by_table = {m.table: m.name for m in schemas.models}
        self._ids: set[str] = set()
        self._grammars: dict[str, Grammar] = {}
        self.statuses: set[int] = set()  # of the refusals that were mentioned

    def describe(self, endpoint: Endpoint) -> Schema:
        """The operation of one endpoint."""
        model = endpoint.model
        if model is not None and is_usual(endpoint, model):
            return self._model_operation(endpoint, model)
        about = endpoint.about or RouteDocs()
        if endpoint.operation is Operation.OPTIONS and not about.name:
            name = f"options_{_path_name(endpoint)}"
            about = replace(about, name=name, summary=f"Methods of {endpoint.path}")
        return self._other_operation(endpoint, about)

    # -- the routes every model has -----------------------------------------------------------

    def _model_operation(self, endpoint: Endpoint, model: ModelMeta) -> Schema:
        one = endpoint.path.endswith("{id}") or bool(model.options.singleton)
        kind = operation = endpoint.operation
        if operation is Operation.HEAD:
            kind = Operation.READ if one else Operation.LIST
        parameters = [*self._ids_of(endpoint), *self._query_parameters(model, kind, one=one)]
        language = self._grammar(model).language() if kind in _SHOWN_IN_LANGUAGES else []
        parameters += language
        has_etags = bool(model.options.optimistic_lock) and kind in (Operation.UPDATE, Operation.DELETE)
        if has_etags:
            parameters.append({"$ref": "#/components/parameters/If-Match"})
        about = endpoint.about or RouteDocs()
        parameter_names = {p["name"] for p in parameters if "name" in p} | (
            {"If-Match"} if has_etags else set()
        )
        entry: Schema = {
            "operationId": self._id(about.name or _model_name(endpoint, model, one)),
            "summary": about.summary or words.summary(operation, model, one),
            "description": words.description(operation, model, parameter_names),
            "tags": list(about.tags) or [model.name],
        }
        if parameters:
            entry["parameters"] = parameters
        if operation in (Operation.CREATE, Operation.UPDATE):
            entry["requestBody"] = self._record_body(model, operation, takes_form=about.takes_form)
        refusals = {*_ERRORS.get(kind, ()), *_FAILURES, *((412,) if has_etags else ())}
        if model.locks and kind is Operation.DELETE:
            refusals.add(422)
        if model.options.singleton:
            refusals -= {404}
        if self._reachable.asks_backend(model, kind):
            refusals.add(502)
        if operation is Operation.OPTIONS:
            refusals = set()
        names_files = "requestBody" in entry and bool(file_fields(model))
        if names_files:
            refusals |= {403, 408, 501, 507}
        codes = _error_codes(model, kind, has_body="requestBody" in entry, names_files=names_files)
        if language:
            refusals.add(400)
            codes |= errors.QUERY_CODES
        responses = self._refusals(endpoint, refusals, codes | frozenset(about.codes))
        answers = self._answers(operation, model)
        if language:
            answers = _in_languages(answers)
        return {**entry, **about.extensions, "responses": answers | responses}

    def _record_body(self, model: ModelMeta, operation: Operation, *, takes_form: bool) -> Schema:
        if operation is Operation.CREATE:
            body = _body(words.NEW_RECORD, ref(f"{model.name}Create"))
        else:
            body = _body(words.CHANGED_FIELDS, ref(f"{model.name}Update"))
        if takes_form:
            body["content"][FORM] = form_content(self._schemas, model, operation)
        return body

    def _query_parameters(self, model: ModelMeta, kind: Operation, *, one: bool) -> list[Schema]:
        """What the query string of a read takes; nothing of other operations."""
        if kind not in (Operation.LIST, Operation.READ):
            return []
        parameters = list(self._grammar(model).parameters(LIST if kind is Operation.LIST else ONE))
        if is_versioned(model.options) and (one or not model.options.versioned_diff_only):
            parameters.append(AS_OF)
        return parameters

    def _answers(self, operation: Operation, model: ModelMeta) -> Schema:
        etag = _ETAG if model.options.optimistic_lock else {}
        record: Schema = {"type": "object", "required": ["data"], "properties": {"data": ref(model.name)}}
        if localized_fields(model):
            record["properties"]["meta"] = _DIRECTION
        match operation:
            case Operation.LIST:
                return {"200": _answer(f"A page of {words.plural(model)}.", self._envelope(model))}
            case Operation.CREATE:
                return {"201": _answer("The record as it was stored.", record, etag)}
            case Operation.READ | Operation.UPDATE:
                return {"200": _answer("The record.", record, etag)}
            case Operation.DELETE:
                return {"204": _answer("The record is deleted.", None)}
            case Operation.OPTIONS:
                return _ALLOWED
            case _:
                return {"200": _answer(words.head_answer(200), None)}

    def _envelope(self, model: ModelMeta) -> Schema:
        pages: Schema = {"$ref": "#/components/schemas/PageMeta"}
        if model.options.cursor_field:
            pages = {"anyOf": [pages, {"$ref": "#/components/schemas/CursorMeta"}]}
        data = {"type": "array", "items": ref(model.name)}
        return {"type": "object", "required": ["data", "meta"], "properties": {"data": data, "meta": pages}}

    def _grammar(self, model: ModelMeta) -> Grammar:
        if model.name not in self._grammars:
            self._grammars[model.name] = Grammar(model, self._reachable, self._limits(model), self._schemas)
        return self._grammars[model.name]

    # -- all other routes ---------------------------------------------------------------------

    def _other_operation(self, endpoint: Endpoint, about: RouteDocs) -> Schema:
        model = endpoint.model
        entry: Schema = {
            "operationId": self._id(about.name or _path_name(endpoint)),
            "summary": about.summary or words.as_words(about.name or _path_name(endpoint)),
            "tags": list(about.tags) or [model.name if model is not None else self._tag_of(endpoint)],
        }
        entry["description"] = words.other_description(endpoint, about, entry["operationId"])
        if about.deprecated:
            entry["deprecated"] = True
        parameters = self._ids_of(endpoint)
        if about.grammar and model is not None:
            for_export = endpoint.operation is Operation.EXPORT
            parameters += self._grammar(model).parameters(about.grammar, for_export=for_export)
        if model is not None and (about.grammar or about.response is model.cls):
            parameters += self._grammar(model).language()
        parameters += [dict(parameter) for parameter in about.parameters]
        for name, kind in about.query.items():
            schema = dict(self._schemas.of(kind, incoming=True))
            text = schema.pop("description", "") or f"`{name}` of the query string."
            parameters.append({"name": name, "in": "query", "description": text, "schema": schema})
        if parameters:
            entry["parameters"] = parameters
        takes_body = about.request is not None or about.request_schema is not None
        if about.request_body is not None:
            entry["requestBody"] = dict(about.request_body)
        elif takes_body:
            own = about.request_schema
            body_schema = dict(self._schemas.of(about.request, incoming=True) if own is None else own)
            entry["requestBody"] = _body(
                about.body_text, body_schema, required=about.body_required, media=about.request_media
            )
        if about.security is not None:
            entry["security"] = [dict(s) for s in about.security]
        answers = self._own_answers(endpoint, about)
        refusals = {s for s in self._own_errors(endpoint, about, takes_body) if str(s) not in answers}
        codes = {*about.codes, *(errors.QUERY_CODES if about.grammar or about.query else ())}
        if takes_body:
            codes |= errors.BODY_CODES
        return {**entry, "responses": answers | self._refusals(endpoint, refusals, codes)}

    def _tag_of(self, endpoint: Endpoint) -> str:
        """The model whose path an action's own path begins with; actions of no model stand together."""
        return self._by_table.get(endpoint.path.strip("/").split("/")[0], "Actions")

    def _own_answers(self, endpoint: Endpoint, about: RouteDocs) -> Schema:
        if endpoint.operation is Operation.OPTIONS:
            return _ALLOWED
        if endpoint.method == "HEAD":
            statuses = about.answers or {about.status: {}}
            return {str(s): _answer(words.head_answer(s), None) for s in sorted(statuses)}
        if about.answers is not None:
            return {
                str(s): _answer(words.answer(about, s), None if schema is None else dict(schema))
                for s, schema in sorted(about.answers.items())
            }
        text = words.answer(about, about.status)
        more = {str(s): self._more_answer(about, s, kind) for s, kind in sorted(about.more_answers.items())}
        if about.status == 204:
            return {"204": _answer(text, None), **more}
        if about.media:
            return {
                str(status): _file_answer(words.answer(about, status), () if status == 304 else about.media)
                for status in sorted({about.status, *about.answer_texts})
            }
        data = dict(about.data_schema or {})
        if about.data_schema is None and about.response is not None:
            data = self._schemas.of(about.response, incoming=False)
        envelope = {"type": "object", "required": ["data"], "properties": {"data": data}}
        is_untyped = about.response is None and about.data_schema is None
        answers: Schema = {str(about.status): _answer(text, envelope)}
        if endpoint.operation is Operation.ACTION and is_untyped and not about.is_status_declared:
            answers["204"] = _answer(words.answer(about, 204), None)
        return {**answers, **more}

    def _more_answer(self, about: RouteDocs, status: int, kind: Any) -> Schema:
        """A further answer of an action, with the type of its data or without a body."""
        if kind is None:
            return _answer(words.answer(about, status), None)
        data = self._schemas.of(kind, incoming=False)
        envelope = {"type": "object", "required": ["data"], "properties": {"data": data}}
        return _answer(words.answer(about, status), envelope)

    def _own_errors(self, endpoint: Endpoint, about: RouteDocs, takes_body: bool) -> set[int]:
        if about.answers is not None or endpoint.operation is Operation.OPTIONS:
            return set(about.errors)
        statuses = {400, *_FAILURES, *about.errors}
        if endpoint.operation is Operation.ACTION:
            statuses |= {404} if endpoint.method == "GET" else {404, 409}
        if "{" in endpoint.path:
            statuses.add(404)
        if about.grammar:
            statuses.add(414)
        if takes_body:
            statuses |= set(_BODY)
        return statuses

    # -- parts of both ------------------------------------------------------------------------

    def _refusals(self, endpoint: Endpoint, statuses: set[int], codes: Set[str]) -> Schema:
        if self._is_guarded(endpoint):
            statuses = statuses | {401, 403}
        head = endpoint.method == "HEAD"
        if not head:
            self.statuses |= statuses
        return errors.list_refusals(statuses, codes, empty=head)

    def _ids_of(self, endpoint: Endpoint) -> list[Schema]:
        return [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": words.path_parameter(name, endpoint.model),
                "schema": {"type": "string", "minLength": 1},
            }
            for name in _PARAMETER.findall(endpoint.path)
        ]

    def _id(self, name: str) -> str:
        plain = re.sub(r"\W+", "_", name).strip("_") or "operation"
        candidate, number = plain, 1
        while candidate in self._ids:
            number += 1
            candidate = f"{plain}_{number}"
        self._ids.add(candidate)
        return candidate


def is_usual(endpoint: Endpoint, model: ModelMeta) -> bool:
    """Whether it is one of the routes that every model has."""
    return _only_named(endpoint.about) and endpoint.path in _paths_of(model)


def _paths_of(model: ModelMeta) -> tuple[str, str]:
    return f"/{model.table}", f"/{model.table}/{{id}}"


def _only_named(about: RouteDocs | None) -> bool:
    """Whether a route is what every model has, though perhaps by another name or with further refusals."""
    if about is None:
        return True
    return about == RouteDocs(
        name=about.name,
        summary=about.summary,
        tags=about.tags,
        codes=about.codes,
        extensions=about.extensions,
        takes_form=about.takes_form,
    )


def _model_name(endpoint: Endpoint, model: ModelMeta, one: bool) -> str:
    single, many = snake_case(model.name), words.plural_name(model)
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


_SHOWN_IN_LANGUAGES = (Operation.LIST, Operation.READ, Operation.CREATE, Operation.UPDATE)
_DIRECTION = {
    "type": "object",
    "description": "There for languages that are written from right to left.",
    "properties": {"_dir": {"const": "rtl"}},
}
_LANGUAGE = {"Content-Language": {"$ref": "#/components/headers/Content-Language"}}


def _in_languages(answers: Schema) -> Schema:
    """The answers of an operation that shows texts in several languages."""
    return {
        s: {**a, "headers": {**a["headers"], **_LANGUAGE}} if "headers" in a else a
        for s, a in answers.items()
    }


def _answer(text: str, schema: Schema | None, headers: Mapping[str, Any] | None = None) -> Schema:
    """An answer; without a schema it has no body."""
    content = {} if schema is None else {"content": {JSON: {"schema": schema}}}
    return {"description": text, "headers": {**HEADERS, **(headers or {})}, **content}


def _file_answer(text: str, media: Sequence[str]) -> Schema:
    """An answer that is a file of one of these types; without any it has no body."""
    content: Schema = {"content": {kind: {"schema": {}} for kind in media}} if media else {}
    return {"description": text, "headers": HEADERS, **content}


def _body(text: str, schema: Schema, *, required: bool = True, media: str = JSON) -> Schema:
    return {"description": text, "required": required, "content": {media: {"schema": schema}}}


def in_order(paths: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Methods in the order people read them."""
    methods: Sequence[str] = ("get", "post", "put", "patch", "delete", "head", "options")
    return {
        path: {m: operations[m] for m in methods if m in operations} for path, operations in paths.items()
    }


# `multipart/form-data` bodies of creates and updates: the fields of a record as parts, files among them.


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
        posted_types: Callable[[], Sequence[DescribedType]] = lambda: (),
    ) -> None:
        self._config = config
        self._models = models
        self._computed = computed
        self._is_guarded = is_guarded
        self._home = home
        self._title = title
        self._entry_docs = entry_docs
        self._security = security
        self._posted_types = posted_types  # events that the API posts to URLs of its callers

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
                tags[tag] = tags.get(tag) or ("" if own else words.TAGS.get(tag, ""))
        self._add_models(schemas, [e for _, e in visible])
        webhooks = {one.type: {"post": describe_webhook(one, schemas)} for one in self._posted_types()}
        self._drop_internal(schemas, [paths, webhooks])
        tags.update({m.name: documentation(m) for m in self._models if m.name in tags})
        return {
            "openapi": "3.1.0",
            "info": self._info(),
            "servers": [{"url": "/"}],
            "tags": _in_order_of_registration(tags),
            "paths": in_order(paths),
            **({"webhooks": webhooks} if webhooks else {}),
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

    def _drop_internal(self, schemas: Schemas, described: Sequence[Mapping[str, Any]]) -> None:
        """A model without routes is for code alone, unless an action tells of it."""
        for model in self._models:
            if model.options.headless:
                schema = schemas.components.pop(model.name)
                if model.name in _referred_to([*described, schemas.components]):
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
    last = {tag: place for place, tag in enumerate(words.TAGS, 1)}
    names = sorted(tags, key=lambda tag: last.get(tag, 0) if tags[tag] == words.TAGS.get(tag) else 0)
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
