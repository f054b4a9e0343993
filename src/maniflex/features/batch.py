"""Several operations in one request: `server.enable_batch`, `POST /batch`.

Every operation goes through the whole pipeline of its own route, as the caller of the batch. An atomic batch
is one transaction, of which the first failure takes everything back; otherwise each operation is a request of
its own, and only what leans on a failed one is left out. All that can be known to be wrong is refused before
anything runs; references are the one thing that only the answers before them can tell.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import msgspec

from maniflex.db.current import share_transaction, transaction
from maniflex.db.port import Adapter
from maniflex.errors import (
    Abort,
    BatchTooLarge,
    Detail,
    InvalidJson,
    NotFound,
    OwnAnswerTooLarge,
    RequestError,
    ValidationFailed,
)
from maniflex.features.actions import Action
from maniflex.model.value_rules import detail, unknown_field
from maniflex.pipeline.answer import failure
from maniflex.pipeline.context import Context, Header
from maniflex.pipeline.in_process import InProcess, headers_of_caller
from maniflex.pipeline.large_answers import write_answer
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import JSON, Response
from maniflex.pipeline.routes import Endpoint, Mount
from maniflex.query.query import reachable_models

if TYPE_CHECKING:
    from maniflex.pipeline.registration import Middleware

METHODS = ("GET", "POST", "PATCH", "PUT", "DELETE")
OWN_HEADERS = ("If-Match", "If-None-Match", "Idempotency-Key", "Accept-Language", "Prefer")
_OPERATIONS = frozenset(
    {
        Operation.LIST,
        Operation.READ,
        Operation.CREATE,
        Operation.UPDATE,
        Operation.DELETE,
        Operation.READ_HISTORY,
    }
)
_KEYS = ("atomic", "operations")
_KEYS_OF_ONE = ("method", "path", "body", "headers", "as")
_PATH = re.compile(r"(/[^{}/?#\s]+)+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PLACE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,63})((?:\.[^.{}\s]+)+)")
_IN_PATH = re.compile(r"\{([^{}]*)\}")
_NULL = msgspec.Raw(b"null")
_raw_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_raw_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class DependencyFailed(RequestError):
    """An operation refers to one that has failed, so it did not run."""

    status, code = 424, "DEPENDENCY_FAILED"
    message = "an operation that this one refers to has failed, so it did not run"


class BatchFailed(Abort):
    """The first failure of an atomic batch: nothing of it is stored."""


@dataclass(slots=True)
class BatchOperation:
    """One operation, as it was sent."""

    index: int
    method: str
    path: str  # below the path prefix, with its query string and its references
    body: bytes
    headers: tuple[Header, ...]
    name: str
    leans_on: frozenset[str]
    names_values: bool  # whether references stand in the body


@dataclass(slots=True)
class BatchPlan:
    """A batch that may run."""

    operations: Sequence[BatchOperation]
    adapter: Adapter | None  # of an atomic one: the database of its transaction


@dataclass(slots=True)
class BatchOutcome:
    """What came of one operation."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    data: msgspec.Raw = field(default_factory=lambda: _NULL)
    meta: msgspec.Raw | None = None
    error: Mapping[str, Any] | None = None

    def show(self) -> dict[str, Any]:
        """Its entry in the answer of the batch."""
        if self.error is not None:
            return {"status": self.status, "error": self.error, "headers": self.headers}
        entry: dict[str, Any] = {"status": self.status, "data": self.data, "headers": self.headers}
        if self.meta is not None:
            entry["meta"] = self.meta
        return entry


class BatchRoute:
    """The route of batches of one server."""

    def __init__(self, path: str, max_operations: int, *, actions: bool) -> None:
        self.path = path
        self.max_operations = max_operations
        self._operations = _OPERATIONS | {Operation.ACTION} if actions else _OPERATIONS
        self._in_process: InProcess | None = None

    def problems(self) -> Iterator[str]:
        """The mistakes of its declaration."""
        if not _PATH.fullmatch(self.path):
            yield f"enable_batch: {self.path!r} is not a path like /batch"
        if type(self.max_operations) is not int or not 1 <= self.max_operations <= 10_000:
            yield f"enable_batch: max_operations={self.max_operations!r} is no number from 1 to 10000"

    def action(self, middleware: Sequence[Middleware]) -> Action:
        """The route as an action, with the middleware that keeps keys."""
        return Action(
            method="POST",
            path=self.path if _PATH.fullmatch(self.path) else "/batch",
            handler=self.answer,
            middleware=tuple(middleware),
            name="batch",
            summary="Run several operations in one request",
            description=_DESCRIPTION,
            tags=("Batch",),
            errors=(404, 409, 412, 413, 422),
            request_body={"required": True, "content": {JSON: {"schema": self._schema()}}},
            response=list[dict[str, Any]],
            responses={207: list[dict[str, Any]]},
            status=200,
        )

    def attach(self, in_process: InProcess) -> None:
        """Take what runs operations."""
        self._in_process = in_process

    @asynccontextmanager
    async def surround(self, ctx: Context) -> AsyncIterator[Adapter | None]:
        """Read the batch, and stand around its transaction: the database of that, None where it has none."""
        plan = ctx._result = await self._read(ctx)
        if plan.adapter is None:
            yield None
            return
        async with share_transaction():
            yield plan.adapter

    async def answer(self, ctx: Context) -> Response:
        """Run the operations of a batch that was read."""
        plan: BatchPlan = ctx._result
        ctx._result = None
        shown_models: set[str] = set()
        run = _RunningBatch(self, ctx, shown_models)
        if plan.adapter is None:
            outcomes = await run.apart(plan.operations)
        else:
            async with transaction(plan.adapter):
                outcomes = await run.together(plan.operations)
        ctx.shown_models = tuple(sorted(shown_models))
        body = ctx.runtime.encode({"data": [outcome.show() for outcome in outcomes]})
        return Response(200 if plan.adapter is not None else 207, body=body)

    # -- reading

    async def _read(self, ctx: Context) -> BatchPlan:
        value = await ctx.bind_json()
        if type(value) is not dict:
            raise InvalidJson("the body must be a JSON object")
        problems: list[Detail] = [unknown_field(name, _KEYS) for name in value if name not in _KEYS]
        is_atomic, items = value.get("atomic", True), value.get("operations")
        if type(is_atomic) is not bool:
            problems.append(detail("atomic", "type", "must be true or false"))
        if type(items) is not list or not items:
            problems.append(detail("operations", "type", "must be a list of one operation or more"))
            raise ValidationFailed(details=problems)
        if len(items) > self.max_operations:
            raise BatchTooLarge(f"a batch has at most {self.max_operations} operations")
        raws = _raw_items(_raw_parts(ctx.raw_body or b"")["operations"])
        reader = _BatchReader(self, ctx, is_atomic=is_atomic is not False)
        operations = [reader.read(index, *pair) for index, pair in enumerate(zip(items, raws, strict=True))]
        problems += reader.problems
        if problems:
            raise ValidationFailed(details=problems)
        adapter = (reader.adapter or ctx.runtime.adapter) if is_atomic else None
        return BatchPlan([one for one in operations if one is not None], adapter)

    def find(self, ctx: Context, method: str, path: str) -> Endpoint | None:
        """The endpoint of an operation, whose path is below the prefix; None where there is none."""
        assert self._in_process is not None
        try:
            return self._in_process.find(method, unquote(self.full_path(ctx, path).partition("?")[0]))[0]
        except RequestError:
            return None

    def full_path(self, ctx: Context, path: str) -> str:
        """The path of an operation from the root."""
        return ctx.runtime.config.path_prefix + path

    def refusal(self, endpoint: Endpoint) -> str:
        """Why an endpoint cannot stand in a batch; empty where it can."""
        if endpoint.path == self.path and endpoint.mount is Mount.API:
            return "is a batch, and a batch has none in it"
        if endpoint.operation is Operation.ACTION and Operation.ACTION not in self._operations:
            return "is an action, which batches of this server do not run"
        is_of_records = endpoint.model is not None or endpoint.operation is Operation.ACTION
        if endpoint.mount is not Mount.API or not is_of_records or endpoint.operation not in self._operations:
            return (
                "is no operation on records; exports, files, streams and searches are asked for by themselves"
            )
        return ""

    async def ask(
        self, ctx: Context, method: str, path: str, headers: Sequence[Header], body: bytes
    ) -> tuple[Response, Context]:
        """The answer to one operation, whose references are replaced."""
        assert self._in_process is not None
        path, _, query = path.partition("?")
        return await self._in_process.answer_part(
            ctx, method, unquote(self.full_path(ctx, path)), query.encode(), headers, body
        )

    def _schema(self) -> dict[str, Any]:
        one = {
            "type": "object",
            "required": ["method", "path"],
            "additionalProperties": False,
            "properties": {
                "method": {"type": "string", "enum": list(METHODS)},
                "path": {
                    "type": "string",
                    "pattern": "^/",
                    "description": "Below the path prefix, with its query; `{name.field}` is a reference.",
                },
                "body": {"description": 'The body; `{"$ref": "name.field"}` is a reference.'},
                "headers": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {name: {"type": "string"} for name in OWN_HEADERS},
                },
                "as": {
                    "type": "string",
                    "pattern": f"^{_NAME.pattern}$",
                    "description": "The name by which later operations refer to the answer.",
                },
            },
        }
        return {
            "type": "object",
            "required": ["operations"],
            "additionalProperties": False,
            "properties": {
                "atomic": {
                    "type": "boolean",
                    "default": True,
                    "description": "Whether all operations are one transaction.",
                },
                "operations": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": self.max_operations,
                    "items": one,
                },
            },
        }


_DESCRIPTION = (
    "Every operation is answered as a request of its own would be. An atomic batch is one transaction: its"
    " first failure is answered with the status of that operation and the code BATCH_FAILED, and nothing is"
    " stored. Otherwise the answer is 207 with every outcome, and what refers to a failed one has"
    " the status 424."
)


class _BatchReader:
    """Reads the operations of one batch, and notes every mistake that can be seen before one runs."""

    def __init__(self, route: BatchRoute, ctx: Context, *, is_atomic: bool) -> None:
        self._route = route
        self._ctx = ctx
        self._is_atomic = is_atomic
        self._names: set[str] = set()
        self.adapter: Adapter | None = None
        self.problems: list[Detail] = []

    def read(self, index: int, value: Any, raw: msgspec.Raw) -> BatchOperation | None:
        """One operation; None where it has a mistake."""
        place, before = f"operations[{index}]", len(self.problems)
        if type(value) is not dict:
            self._note(place, "type", "must be an object")
            return None
        self.problems += [
            {**unknown_field(name, _KEYS_OF_ONE), "field": f"{place}.{name}"}
            for name in value
            if name not in _KEYS_OF_ONE
        ]
        method: Any = value.get("method")
        path: Any = value.get("path")
        if method not in METHODS:
            self._note(f"{place}.method", "enum", f"must be one of: {', '.join(METHODS)}")
        if type(path) is not str or not path.startswith("/"):
            self._note(f"{place}.path", "path", "must be a path below the API's own, such as /orders")
            path = ""
        has_body = "body" in value
        if has_body and method in ("GET", "DELETE"):
            self._note(f"{place}.body", "body", f"has no place in a {method}")
        leans_on = {*self._read_path(place, path), *self._read_body(place, value.get("body"))}
        headers = self._read_headers(place, value.get("headers", {}))
        name = self._read_name(place, value)
        if len(self.problems) > before:
            return None
        body = bytes(_raw_parts(raw)["body"]) if has_body else b""
        self._judge(place, method, path)
        names_values = bool([*_references_in(value.get("body"))])
        return BatchOperation(index, method, path, body, headers, name, frozenset(leans_on), names_values)

    def _note(self, place: str, code: str, text: str) -> None:
        self.problems.append(detail(place, code, text))

    def _read_name(self, place: str, value: Mapping[str, Any]) -> str:
        name = value.get("as", "")
        if "as" not in value:
            return ""
        if type(name) is not str or not _NAME.fullmatch(name):
            self._note(f"{place}.as", "pattern", "is no name: letters, digits and _, at most 64")
        elif name in self._names:
            self._note(f"{place}.as", "repeated", "is the name of an earlier operation")
        self._names.add(str(name))
        return str(name)

    def _read_path(self, place: str, path: str) -> Iterator[str]:
        for text in _IN_PATH.findall(path):
            yield from self._read_reference(f"{place}.path", text)
        if "{" in (rest := _IN_PATH.sub("", path)) or "}" in rest:
            self._note(f"{place}.path", "reference", "has a brace that is no reference such as {order.id}")

    def _read_body(self, place: str, body: Any) -> Iterator[str]:
        for item in _references_in(body):
            if len(item) > 1 or type(item["$ref"]) is not str:
                self._note(
                    f"{place}.body", "reference", 'has a "$ref" that does not stand alone with its text'
                )
            else:
                yield from self._read_reference(f"{place}.body", item["$ref"])

    def _read_reference(self, place: str, text: str) -> Iterator[str]:
        match = _PLACE.fullmatch(text)
        if match is None:
            self._note(place, "reference", f"has the reference {text!r}, which is none such as order.id")
        elif match[1] not in self._names:
            self._note(place, "reference", f"refers to {match[1]!r}, which is no earlier operation")
        else:
            yield match[1]

    def _read_headers(self, place: str, headers: Any) -> tuple[Header, ...]:
        if type(headers) is not dict:
            self._note(f"{place}.headers", "type", "must be an object")
            return ()
        own_names = {name.lower() for name in OWN_HEADERS}
        pairs: dict[bytes, bytes] = {}
        for name, value in headers.items():
            if name.lower() not in own_names:
                self._note(f"{place}.headers.{name}", "header", f"must be one of: {', '.join(OWN_HEADERS)}")
            elif type(value) is not str or not value.isascii() or not value.isprintable():
                self._note(f"{place}.headers.{name}", "type", "must be a text of printable ASCII")
            else:
                pairs[name.lower().encode()] = value.encode()
        return tuple(pairs.items())

    def _judge(self, place: str, method: str, path: str) -> None:
        """Refuse what no batch runs; whether there is such a route is told by the operation."""
        endpoint = self._route.find(self._ctx, method, _IN_PATH.sub("0", path))
        if endpoint is None:
            return
        refusal = self._route.refusal(endpoint)
        if refusal:
            self._note(f"{place}.path", "operation", refusal)
        elif self._is_atomic:
            self._judge_database(f"{place}.path", endpoint)

    def _judge_database(self, place: str, endpoint: Endpoint) -> None:
        adapter = self._ctx.runtime.adapter
        if endpoint.model is not None:
            store = self._ctx.runtime.stores[endpoint.model.cls]
            adapter = store.adapter
            if not store.has_transactions:
                self._note(
                    place, "database", "is about records that no transaction takes back; send atomic: false"
                )
                return
        if self.adapter is not None and self.adapter is not adapter:
            self._note(place, "database", "is about another database than those before; send atomic: false")
        self.adapter = self.adapter or adapter


class _RunningBatch:
    """One batch while it runs."""

    def __init__(self, route: BatchRoute, ctx: Context, shown_models: set[str]) -> None:
        self._route = route
        self._ctx = ctx
        self._shown_models = shown_models
        self._data: dict[str, msgspec.Raw] = {}
        self._size = 0
        headers = headers_of_caller(ctx)
        self._headers: list[Header] = headers
        self._without_language = [pair for pair in headers if pair[0] != b"accept-language"]

    async def together(self, operations: Sequence[BatchOperation]) -> list[BatchOutcome]:
        """All of them, in the transaction that is open; `BatchFailed` with the first that fails."""
        outcomes = []
        for operation in operations:
            outcome = await self._run(operation)
            if outcome.error is not None:
                raise self._failure(operation.index, outcome)
            outcomes.append(outcome)
        return outcomes

    async def apart(self, operations: Sequence[BatchOperation]) -> list[BatchOutcome]:
        """All of them, each by itself; what leans on a failed one does not run."""
        outcomes: list[BatchOutcome] = []
        failed_names: set[str] = set()
        for operation in operations:
            if operation.leans_on & failed_names:
                outcome = self._refuse(DependencyFailed())
            else:
                outcome = await self._run(operation)
            if outcome.error is not None and operation.name:
                failed_names.add(operation.name)
            outcomes.append(outcome)
        return outcomes

    def _failure(self, index: int, outcome: BatchOutcome) -> BatchFailed:
        """What the batch is answered with; of the operation's headers those that say what to do next."""
        details = [{"index": index, "status": outcome.status, "error": outcome.error}]
        names = ("retry-after", "www-authenticate")
        headers = {name: outcome.headers[name] for name in names if name in outcome.headers}
        message = f"operation {index} failed, and nothing was stored"
        failure = BatchFailed(outcome.status, "BATCH_FAILED", message, details, headers=headers or None)
        failure.retryable = bool((outcome.error or {}).get("retryable"))
        return failure

    async def _run(self, operation: BatchOperation) -> BatchOutcome:
        try:
            path, body = operation.path, operation.body
            if operation.leans_on:
                path = self._fill_path(path)
                self._require_kind(operation.method, path)
                if operation.names_values:
                    body = self._fill(msgspec.Raw(body))
            response, part = await self._route.ask(
                self._ctx, operation.method, path, self._headers_of(operation, body), body
            )
            outcome = await self._read(response, part)
        except RequestError as refusal:
            return self._refuse(refusal)
        if operation.name and outcome.error is None:
            self._data[operation.name] = outcome.data
        return outcome

    def _refuse(self, refusal: RequestError) -> BatchOutcome:
        """The outcome of an operation that its route did not answer."""
        return BatchOutcome(refusal.status, error=failure(self._ctx, refusal).error)

    def _headers_of(self, operation: BatchOperation, body: bytes) -> list[Header]:
        own = operation.headers
        headers = self._without_language if any(n == b"accept-language" for n, _ in own) else self._headers
        if not body:
            return [*headers, *own]
        length = b"content-length", b"%d" % len(body)
        return [*headers, *own, (b"content-type", b"application/json"), length]

    async def _read(self, response: Response, part: Context) -> BatchOutcome:
        """What the answer of a route says, as a part of the answer of the batch."""
        ctx = self._ctx
        if part.keeps_answer_secret:
            ctx.keep_answer_secret()
        headers = dict(response.headers or {})
        for name, value in [*(part.extra_headers or ()), *response.marks]:
            if name == b"set-cookie":  # which pages cannot read, and this body they can
                ctx.add_header("set-cookie", value.decode("latin-1"))
            else:
                headers[name.decode()] = value.decode("latin-1")
        if response.stream is not None:
            await response.stream.aclose()
            raise ValidationFailed("the operation answers with a stream, which has no place in a batch")
        body = response.body
        if body is None:
            body = await write_answer(response, ctx.runtime)
        self._size += len(body)
        if self._size > (most := ctx.runtime.config.limits.answer_size):
            raise OwnAnswerTooLarge(f"the answers of the batch are larger than {most} bytes")
        if body and response.content_type != JSON:
            raise ValidationFailed("the operation answers with no JSON, which has no place in a batch")
        if response.status >= 400:
            return BatchOutcome(response.status, headers, error=_error_in(response, body))
        self._note_models(part)
        data, meta = _parts_of(body)
        return BatchOutcome(response.status, headers, data, meta)

    def _note_models(self, part: Context) -> None:
        """Whose records the answer shows, for the day on which it is given again."""
        runtime = self._ctx.runtime
        if not runtime.rules.has_redactions:
            return
        self._shown_models.update(part.shown_models)
        about: Any = part.model
        if about is not None:
            models = reachable_models(about, runtime.stores[about.cls].models)
            self._shown_models.update(meta.name for meta in (about, *models))

    # -- references

    def _require_kind(self, method: str, path: str) -> None:
        """Refuse a path that became one which no batch runs."""
        endpoint = self._route.find(self._ctx, method, path)
        if endpoint is not None and (refusal := self._route.refusal(endpoint)):
            raise ValidationFailed(details=[detail("path", "operation", refusal)])

    def _fill_path(self, path: str) -> str:
        path, mark, query = path.partition("?")
        segments = [_IN_PATH.sub(lambda text: self._segment(text[1]), part) for part in path.split("/")]
        return "/".join(segments) + mark + _IN_PATH.sub(lambda text: self._text(text[1]), query)

    def _segment(self, text: str) -> str:
        segment = self._text(text)
        if not segment or "%2F" in segment:  # no record has such an id, and another route might
            raise NotFound()
        return segment

    def _text(self, text: str) -> str:
        value = msgspec.json.decode(self._value(text))
        if value is None or isinstance(value, dict | list):
            raise self._missing(text)
        return quote(value if type(value) is str else _encode(value), safe="")

    def _fill(self, raw: msgspec.Raw) -> bytes:
        """The JSON with values in place of references; all other digits stay as they were sent."""
        text = bytes(raw)
        if b"$ref" not in text and b"\\u0024" not in text:
            return text
        first = text.lstrip()[:1]
        if first == b"[":
            return b"[" + b",".join(map(self._fill, _raw_items(raw))) + b"]"
        if first != b"{":
            return text
        parts = _raw_parts(raw)
        if "$ref" in parts:
            return bytes(self._value(msgspec.json.decode(parts["$ref"])))
        return b"{" + b",".join(_encode(n) + b":" + self._fill(part) for n, part in parts.items()) + b"}"

    def _value(self, text: str) -> msgspec.Raw:
        match = _PLACE.fullmatch(text)
        assert match is not None, "it was read before"
        raw = self._data.get(match[1], _NULL)
        for name in match[2][1:].split("."):
            raw = _part_of(raw, name) or _refuse(self._missing(text))
        return raw

    def _missing(self, text: str) -> ValidationFailed:
        message = "is not there in the answer of that operation"
        return ValidationFailed(details=[detail(text, "reference", message)])


def _refuse(error: RequestError) -> Any:
    raise error


def _references_in(value: Any) -> Iterator[dict[str, Any]]:
    """The objects with a reference in a body."""
    items = [value]
    for item in items:  # it grows while it is walked
        if type(item) is dict:
            if "$ref" in item:
                yield item
            else:
                items += item.values()
        elif type(item) is list:
            items += item


def _part_of(raw: msgspec.Raw, name: str) -> msgspec.Raw | None:
    """A field of an object or an item of a list, as it stands in JSON."""
    try:
        if bytes(raw).lstrip()[:1] == b"[":
            items = _raw_items(raw)
            return items[int(name)] if name.isascii() and name.isdigit() and int(name) < len(items) else None
        return _raw_parts(raw).get(name)
    except msgspec.MsgspecError:
        return None


def _parts_of(body: bytes) -> tuple[msgspec.Raw, msgspec.Raw | None]:
    """Data and paging of an envelope; a body of the application's own is all data."""
    if not body:
        return _NULL, None
    try:
        parts = _raw_parts(body)
    except msgspec.MsgspecError:
        return msgspec.Raw(body), None
    return (parts["data"], parts.get("meta")) if "data" in parts else (msgspec.Raw(body), None)


def _error_in(response: Response, body: bytes) -> Mapping[str, Any]:
    """The error of a refusal, which an application may have written itself."""
    if response.error is not None:
        return response.error
    try:
        error = _raw_parts(body).get("error") if body else None
        value = None if error is None else msgspec.json.decode(error)
    except msgspec.MsgspecError:
        value = None
    return value if isinstance(value, dict) else {"code": "REFUSED", "message": "the operation was refused"}
