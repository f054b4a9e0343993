"""Answer those who may read a stored file: its headers, the part that is asked for, and its bytes.

What a client uploaded never runs in a browser as if it were ours: types that do are downloads, and
`nosniff` and a sandbox keep a browser from finding others.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import partial
from urllib.parse import quote

from maniflex.db.store import Store
from maniflex.errors import (
    FileNotFound,
    FileNotSet,
    InvalidQuery,
    NotFound,
    RangeNotSatisfiable,
    RequestError,
    UnusableScope,
)
from maniflex.features.files.docs import attachment_docs
from maniflex.files.desk import NO_RULES, FileDesk
from maniflex.files.owner import is_owner, is_uploader, owner_of
from maniflex.files.store import FileState, Link, StoredFile
from maniflex.model.field import ACLS, FileRules, file_fields, rules_of_field
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.chain import AddedStep, Default, StepPlace
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.response import Response, no_answer_error, status_of
from maniflex.pipeline.routes import Endpoint, RouteBuilder, serves
from maniflex.pipeline.rules.policies import RowJudge
from maniflex.pipeline.rules.reach import Guard, Refused, admit
from maniflex.pipeline.scope import require_binding
from maniflex.pipeline.steps.db import Database
from maniflex.pipeline.steps.policies import ShownRows
from maniflex.query.query import reachable_models
from maniflex.storage.port import OCTET_STREAM, Reader

Opener = Callable[[int, int | None], Awaitable[Reader]]  # of a start and a length
_PDF = "application/pdf"
INLINE = frozenset(
    {"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", _PDF, "text/plain"}
)  # what a browser shows without running it
_SANDBOX = "sandbox; default-src 'none'"
_PUBLIC = "public, max-age=31536000, immutable"  # a key never gets another file
_PRIVATE = "private, no-cache"
_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(\s*;\s*[\w.+-]+=([\w.+-]+|\"[\w .+-]*\"))*", re.ASCII)
_NOT_IN_QUOTES = re.compile(r"[^\x20-\x7e]|[\"\\%;]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Download:
    """A file that is to be sent, as its row knows it."""

    filename: str
    content_type: str
    size: int
    etag: str
    modified: datetime | None
    is_public: bool = False
    as_attachment: bool = False  # whatever its type


def download_response(ctx: Context, file: Download, open_file: Opener) -> Response:
    """The answer to GET or HEAD; nothing is opened before its bytes are sent."""
    headers = {
        "etag": file.etag,
        "cache-control": _PUBLIC if file.is_public else _PRIVATE,
        "x-content-type-options": "nosniff",
    }
    if file.modified is not None:
        headers["last-modified"] = http_date(file.modified)
    if is_unchanged(ctx.header, file.etag, file.modified):
        return Response(304, headers=headers)
    span = asked_span(ctx.header, file.size, file.etag, file.modified)
    content_type = file.content_type if _TYPE.fullmatch(file.content_type) else OCTET_STREAM
    bare_type = content_type.partition(";")[0].strip().lower()
    headers |= {
        "content-disposition": disposition(file.filename, inline=_is_inline(ctx, file, bare_type)),
        "content-length": str(file.size if span is None else span.length),
        "accept-ranges": "bytes",
    }
    if bare_type != _PDF:  # browsers show none in a sandbox
        headers["content-security-policy"] = _SANDBOX
    if span is not None:
        headers["content-range"] = span.header
    return Response(
        200 if span is None else 206,
        headers=headers,
        content_type=content_type,
        stream=_bytes_of(span, open_file),
    )


async def _bytes_of(span: Span | None, open_file: Opener) -> AsyncGenerator[bytes, None]:
    reader = await (open_file(0, None) if span is None else open_file(span.start, span.length))
    async with aclosing(reader):
        async for chunk in reader:
            yield chunk


def _is_inline(ctx: Context, file: Download, bare_type: str) -> bool:
    return bare_type in INLINE and not file.as_attachment and ctx.query_param("download") != "1"


def disposition(filename: str, *, inline: bool) -> str:
    """`Content-Disposition` by RFC 6266: an ASCII name, and the whole name where that is another."""
    kind = "inline" if inline else "attachment"
    name = _CONTROL.sub("_", filename)
    if not name:
        return kind
    ascii_name = _NOT_IN_QUOTES.sub("_", name)
    text = f'{kind}; filename="{ascii_name}"'
    return text if ascii_name == name else f"{text}; filename*=UTF-8''{quote(name, safe='')}"


# Which bytes of a file a request asks for, and whether it has them already (RFC 9110).


Header = Callable[[str], str | None]
_RANGE = re.compile(r"bytes=\s*([0-9]{0,18})-([0-9]{0,18})\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes from `start` on, `length` of them, of a file with `size`."""

    start: int
    length: int
    size: int

    @property
    def header(self) -> str:
        return f"bytes {self.start}-{self.start + self.length - 1}/{self.size}"


def asked_span(header: Header, size: int, etag: str, modified: datetime | None) -> Span | None:
    """The part that is asked for; None for all of it. Several ranges and other units mean all of it."""
    text = header("range")
    if text is None or not _still_holds(header("if-range"), etag, modified):
        return None
    match = _RANGE.fullmatch(text.strip())
    if match is None or match[0].endswith("=-"):
        return None
    first, last = match[1], match[2]
    if not first and not last:
        return None
    if not first:
        length = min(int(last), size)
        if length == 0:
            raise _unsatisfiable(size)
        return Span(size - length, length, size)
    start = int(first)
    if last and int(last) < start:
        return None
    if start >= size:
        raise _unsatisfiable(size)
    end = min(int(last), size - 1) if last else size - 1
    return Span(start, end - start + 1, size)


def is_unchanged(header: Header, etag: str, modified: datetime | None) -> bool:
    """Whether the client has the file as it is, so that 304 says all."""
    tags = header("if-none-match")
    if tags is not None:
        return tags.strip() == "*" or etag in [_strong(tag) for tag in tags.split(",")]
    since = _moment(header("if-modified-since"))
    return since is not None and modified is not None and modified.replace(microsecond=0) <= since


def http_date(moment: datetime) -> str:
    return format_datetime(moment.astimezone(UTC), usegmt=True)


def _still_holds(condition: str | None, etag: str, modified: datetime | None) -> bool:
    """Whether `If-Range` names the file as it is; a weak tag never does."""
    if condition is None:
        return True
    condition = condition.strip()
    if condition.startswith(('"', "W/")):
        return condition == etag
    since = _moment(condition)
    return since is not None and modified is not None and modified.replace(microsecond=0) == since


def _strong(tag: str) -> str:
    return tag.strip().removeprefix("W/")


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _unsatisfiable(size: int) -> RangeNotSatisfiable:
    return RangeNotSatisfiable(headers={"content-range": f"bytes */{size}"})


# `GET /{table}/{id}/{field}`: the file of a record, behind everything that guards reading the record.


_READABLE = (FileState.STORED, FileState.LINKED)


def attachment_endpoints(routes: RouteBuilder, model: ModelMeta, desk: FileDesk) -> Iterator[Endpoint]:
    """The routes of the files that records of a model have."""
    if model.options.headless:
        return
    for field, rules in file_fields(model):
        if not field.hidden:
            yield from routes.with_options(Attachment(desk, model, field, rules).endpoints(routes))


def private_attachment_endpoints(routes: RouteBuilder, model: ModelMeta) -> list[Endpoint]:
    """The same for requests of this process alone, whether or not the model has routes on a path."""
    desk: FileDesk | None = routes.runtime.file_desk
    if desk is None or not desk.has_storage:
        return []
    fields = [(field, rules) for field, rules in file_fields(model) if not field.hidden]
    return [one for field, rules in fields for one in Attachment(desk, model, field, rules).endpoints(routes)]


class Attachment:
    """The files in one field of a model."""

    def __init__(self, desk: FileDesk, model: ModelMeta, field: FieldMeta, rules: FileRules) -> None:
        self._desk = desk
        self._model = model
        self._field = field
        self._rules = rules

    def endpoints(self, routes: RouteBuilder) -> Iterator[Endpoint]:
        model, runtime = self._model, routes.runtime
        store = runtime.stores[model.cls]
        database = Database(store, runtime.serializers[model.cls], runtime)
        read: Default = database.read_singleton if model.options.singleton else database.read
        defaults: dict[str, Default | AddedStep] = {"db": read}
        rules = runtime.rules[model.cls]
        if rules.judges_rows:
            judge = rules.judge(Operation.READ_ATTACHMENT, item=True)
            defaults["policies"] = AddedStep(
                ShownRows(runtime.rules, judge).judge_one, "db", StepPlace.BEHIND
            )
        for method in ("GET", "HEAD"):
            yield routes.endpoint(
                method,
                self._path,
                Operation.READ_ATTACHMENT,  # HEAD too: no rule for files is passed by asking for headers only
                model=model,
                defaults=defaults,
                outer=[("as_of", _refuse_past)],
                respond=self.answer,
                item=True,
                about=attachment_docs(model, self._field, self._rules, method=method),
            )

    @property
    def _path(self) -> str:
        record = f"/{self._model.table}" if self._model.options.singleton else f"/{self._model.table}/{{id}}"
        return (
            f"{record}/{self._field.api}/{{index}}" if self._rules.is_list else f"{record}/{self._field.api}"
        )

    async def answer(self, ctx: Context) -> None:
        """The response step."""
        if ctx.response is not None:
            return
        if ctx.result is None:
            raise no_answer_error(ctx)
        if self._field.api in await ctx.redacted(self._model.cls):
            raise NotFound()  # as if there were no such field
        value = getattr(ctx.result, self._field.name)
        if self._rules.is_list:
            value = _item(value or (), ctx.params.get("index", ""))
        if not value:
            raise FileNotSet()
        file = await self._desk.find(value)
        await answer_with_file(
            ctx,
            self._desk,
            file,
            is_public=False,  # also of a public one: the record may have another file tomorrow
            as_attachment=self._rules.inline is False,
        )


async def _refuse_past(ctx: Context, call_next: Next) -> None:
    """Of a file there is no past, and today's is not served for it."""
    if b"as_of" in ctx.scope["query_string"] and ctx.query_param("as_of") is not None:
        raise InvalidQuery("as_of: the record can be read as it was, its files cannot")
    await call_next()


async def answer_with_file(
    ctx: Context,
    desk: FileDesk,
    file: StoredFile | None,
    *,
    is_public: bool,
    as_attachment: bool = False,
    filename: str | None = None,
) -> None:
    """Set the answer that sends a file; 404 when all of it is not there."""
    if file is None or file.state not in _READABLE:
        raise FileNotFound()
    if ctx.scope["method"] == "HEAD":
        await desk.stat(file.key)
    download = Download(
        filename=file.filename if filename is None else filename,
        content_type=file.content_type,
        size=file.size or 0,
        etag=_etag(file),
        modified=file.created_at,
        is_public=is_public,
        as_attachment=as_attachment,
    )
    ctx.response = download_response(ctx, download, partial(desk.open, file.key))


def _etag(file: StoredFile) -> str:
    """A strong tag: a key never gets other bytes."""
    return f'"{file.sha256}"' if file.sha256 else file.etag or f'"{file.id}"'


def _item(keys: list[str] | tuple[str, ...], index: str) -> str:
    if not (index.isascii() and index.isdigit()) or len(index) > 6 or int(index) >= len(keys):
        raise FileNotFound()
    return keys[int(index)]


# Who may read a file by its key: those who may read one of the records that name it.
#
# Before a record stand the auth middleware of its model, its scopes, its policies and its redaction,
# however a request comes to it; `record_readers` works out at the start what of that a route has not
# passed.


_OUT_OF_REACH = frozenset({401, 403, 404})  # what says of a record that this caller may not read it


@dataclass(frozen=True, slots=True)
class RecordReader:
    """How one route comes to the records of a model with file fields."""

    store: Store
    operation: Operation  # that shows such a record to clients
    guard: Guard | None  # the auth middleware of the model that the route has not passed
    judge: RowJudge


def record_readers(
    routes: RouteBuilder, model: ModelMeta | None, operation: Operation
) -> dict[str, RecordReader]:
    """By model, how a route comes to records that name files; without the models that no client may read."""
    runtime = routes.runtime
    metas = [store.meta for store in runtime.stores.values()]
    shown_names = _names_of_shown(metas)
    readers: dict[str, RecordReader] = {}
    for meta in metas:
        if meta.name not in shown_names or not file_fields(meta):
            continue
        is_read = not meta.options.headless and serves(meta, Operation.READ_ATTACHMENT, item=True)
        shown_by = Operation.READ_ATTACHMENT if is_read else Operation.LIST
        guards = routes.reached.guards(
            [meta], model, operation, item=operation is not Operation.CREATE, asked=shown_by
        )
        rules = runtime.rules[meta.cls]
        judge = rules.judge(shown_by, item=True) if is_read else rules.judge_of_included
        readers[meta.name] = RecordReader(runtime.stores[meta.cls], shown_by, guards.get(meta), judge)
    return readers


def _names_of_shown(metas: Iterable[ModelMeta]) -> set[str]:
    """The models whose records clients may read: by routes of their own, or as what others include."""
    by_name = {meta.name: meta for meta in metas}
    names: set[str] = set()
    for meta in by_name.values():
        by_id, in_lists = (
            serves(meta, operation, item=item)
            for operation, item in ((Operation.READ, True), (Operation.LIST, False))
        )
        if not meta.options.headless and (by_id or in_lists):
            names |= {meta.name, *(one.name for one in reachable_models(meta, by_name))}
    return names


@dataclass(frozen=True, slots=True)
class AskedFile:
    """A file that a request asks for, and the fields of records that name it."""

    file: StoredFile | None
    links: Sequence[Link]
    rules: Sequence[FileRules]

    @property
    def is_public(self) -> bool:
        """Whether the key opens it to everybody: of several fields the strictest counts."""
        if self.file is None:
            return False
        acls = [rules.acl for rules in self.rules] or [self.file.acl]
        return min(acls, key=ACLS.index) == "public"

    @property
    def as_attachment(self) -> bool:
        return any(rules.inline is False for rules in self.rules)


class FileAccess:
    """Judges the callers of one route; who may not read a file is told that there is none."""

    def __init__(self, desk: FileDesk, readers: Mapping[str, RecordReader]) -> None:
        self._desk = desk
        self._readers = readers

    async def look_up(self, ctx: Context, key: str) -> AskedFile:
        """The file of a key with the records that name it and their rules, before the caller is known."""
        file = await self._desk.find(key)
        links = [] if file is None else await self._desk.links(key)
        rules = []
        for link in links:
            store = ctx.runtime.find_store(link.model)
            field = None if store is None else store.meta.by_name.get(link.field)
            # A field that is declared no more has no rules, so the file counts as private.
            rules.append((None if field is None else rules_of_field(field)) or NO_RULES)
        return AskedFile(file, links, rules)

    async def require_readable(self, ctx: Context, asked: AskedFile) -> None:
        """404 unless the caller, who passed the auth step, may read the file."""
        file, config = asked.file, self._desk.config
        if file is None or not _is_of_tenant(ctx, file):
            raise FileNotFound()
        owner = await owner_of(ctx, config.file_scope)
        if config.files_read == "owner" and file.scope and not is_owner(file, owner):
            raise FileNotFound()
        if config.files_read == "record" and asked.links:
            raise FileNotFound()
        may_read = await self.is_in_reach(ctx, asked.links) if asked.links else is_uploader(file, owner)
        if not may_read:
            raise FileNotFound()

    async def require_deletable(self, ctx: Context, key: str) -> None:
        """404 unless the caller may read the file and it is somebody's; `files_admin_role` may delete any.

        A caller of one tenant deletes no file of another, whatever the caller's role.
        """
        asked_file = await self.look_up(ctx, key)
        if asked_file.file is None:
            raise FileNotFound()
        if ctx.has_role(self._desk.config.files_admin_role):
            is_bound = ctx.auth is not None and bool(ctx.auth.tenant_id)
            if is_bound and not _is_of_tenant(ctx, asked_file.file):
                raise FileNotFound()
            return
        await self.require_readable(ctx, asked_file)
        if not asked_file.links and not asked_file.file.scope:
            raise FileNotFound()

    async def is_in_reach(self, ctx: Context, links: Sequence[Link]) -> bool:
        """Whether the caller may read one of the records that name a file."""
        for link in links:
            if await self._reaches(ctx, link):
                return True
        return False

    async def _reaches(self, ctx: Context, link: Link) -> bool:
        reader = self._readers.get(link.model)
        if reader is None:  # nothing says who may read the record
            return False
        before = ctx._query, ctx.policy_views  # what one record is bound by says nothing of the next
        try:
            if reader.guard is not None:
                meta = reader.store.meta
                record_id = "" if meta.options.singleton else link.record_id
                await admit(ctx, meta, reader.guard, reader.operation, record_id)
            return await _is_shown(ctx, reader, link)
        except Refused as refusal:
            if status_of(refusal.response) not in _OUT_OF_REACH:
                raise
        except RequestError as refusal:
            if refusal.status not in _OUT_OF_REACH:
                raise
        finally:
            ctx._query, ctx.policy_views = before
        return False


async def _is_shown(ctx: Context, reader: RecordReader, link: Link) -> bool:
    """Whether scopes, redaction and policies leave the field of the record to the caller."""
    store, judge = reader.store, reader.judge
    field = store.meta.by_name.get(link.field)
    if field is None or field.hidden or field in await ctx.hidden_fields(store.meta):
        return False
    scope = await ctx.scope_of(store.meta, reader.operation)
    if not scope and not judge and store.meta.soft_delete is None:
        return True
    try:
        row = await store.find(link.record_id, scope=require_binding(store, scope))
    except UnusableScope:
        return False
    return row is not None and await judge.allows_row(ctx, row)


def _is_of_tenant(ctx: Context, file: StoredFile) -> bool:
    return not file.tenant_id or (ctx.auth is not None and ctx.auth.tenant_id == file.tenant_id)
