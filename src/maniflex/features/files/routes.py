"""`/files`: upload a file, read it, delete it; and take the files that signed URLs of this server bring.

A valid signature, and a file of a public field, are served before the auth step: nobody has to say who
asks. All others pass the auth step and the middleware of `files_middleware`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import unquote_to_bytes

from maniflex.errors import (
    FileNotFound,
    FileTooLarge,
    FileTypeNotAllowed,
    MissingKey,
    MultipartError,
    NoFile,
    UnsupportedMediaType,
)
from maniflex.features.files import docs
from maniflex.features.files.downloads import FileAccess, answer_with_file, record_readers
from maniflex.features.files.forms import (
    KEY_HEADER,
    Form,
    FormLimits,
    FormPart,
    FormRequest,
    Spool,
    UploadedFile,
    check_headers,
    form_type,
)
from maniflex.files.desk import FileDesk
from maniflex.files.owner import owner_of
from maniflex.files.store import StoredFile
from maniflex.pipeline.body import UploadBody, uploading
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Middleware, acts_on_files
from maniflex.pipeline.response import Response, no_answer_error
from maniflex.pipeline.routes import TRIMMED, Endpoint, RouteBuilder
from maniflex.pipeline.watch import ClientGone
from maniflex.query.parse import pairs
from maniflex.storage.port import ServedHere
from maniflex.storage.signer import UploadGrant, UrlSigner

OWNER = "files"
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
Next = Callable[[], Awaitable[None]]


def file_endpoints(routes: RouteBuilder, desk: FileDesk) -> Iterator[Endpoint]:
    """The routes of single files."""
    yield from routes.with_options(_SingleFileRoutes(routes, desk).endpoints())


class _SingleFileRoutes:
    def __init__(self, routes: RouteBuilder, desk: FileDesk) -> None:
        config = routes.runtime.config
        self._routes = routes
        self._desk = desk
        self._path = config.files_path
        self._prefix = config.path_prefix + config.files_path + "/"
        self._limits = FormLimits(config.max_upload_size, config.max_form_parts)
        self._access = FileAccess(desk, record_readers(routes, None, Operation.READ_FILE))
        self._middleware = config.files_middleware
        self._memory, self._directory = config.upload_memory, str(config.upload_dir)

    def endpoints(self) -> Iterator[Endpoint]:
        one = f"{self._path}/{{key...}}"
        yield self._endpoint("POST", self._path, Operation.UPLOAD_FILE, self.upload, docs.upload_docs())
        for method in ("GET", "HEAD"):
            yield self._endpoint(
                method, one, Operation.READ_FILE, self.read, docs.read_docs(method), door=self.read_openly
            )
        yield self._endpoint("DELETE", one, Operation.DELETE_FILE, self.delete, docs.delete_docs())
        if isinstance(self._desk.storage, ServedHere):
            yield self._endpoint(
                "PUT", one, Operation.UPLOAD_FILE, self.read, docs.receive_docs(), door=self.receive
            )

    def _endpoint(
        self,
        method: str,
        path: str,
        operation: Operation,
        handler: Callable[[Context], Awaitable[None]],
        about: Any,
        door: Callable[[Context, Next], Awaitable[None]] | None = None,
    ) -> Endpoint:
        return self._routes.endpoint(
            method,
            path,
            operation,
            steps=(*TRIMMED, "file"),
            defaults={"file": handler},
            inner=list(self._inner(method, operation)),
            outer=[] if door is None else [("files", door)],
            respond=_respond,
            owner=OWNER,
            about=about,
        )

    def _inner(self, method: str, operation: Operation) -> Iterator[tuple[str, Middleware]]:
        """The entries of `files_middleware` that act on these routes alone; the others end the auth step.

        So they come last, wherever they were written, and a replay passes no rule that refuses requests.
        """
        for fn in self._middleware:
            if not isinstance(fn, Entry) or not acts_on_files(fn):
                continue
            of_route = fn.make(None, operation) if method != "PUT" else None  # a URL is good for one upload
            if of_route is not None:
                if operation is Operation.UPLOAD_FILE:
                    yield "files:spool", self.spool
                yield f"files:{fn.name}", of_route

    # -- uploading

    async def spool(self, ctx: Context, call_next: Next) -> None:
        """Take the whole form in before a key is claimed: only then is it known whether it came before."""
        if not any(name == KEY_HEADER for name, _ in ctx.scope["headers"]):
            await call_next()
            return
        ctx.form = FormRequest(Spool(self._memory, self._directory))
        try:
            form = self._form(ctx, digests=True)
            with uploading(ctx):
                async for part in _file_parts(form):
                    ctx.form.add_waiting(await _spool_part(part, ctx.form.spool))
            ctx.form.digest = form.digest
            try:
                await call_next()
            except Exception:
                await self._desk.condemn(ctx.form.stored_keys)
                raise
            if ctx.response is not ctx.form.answer:  # the key is another's by now, and so is the answer
                await self._desk.condemn(ctx.form.stored_keys)
        finally:
            ctx.form.spool.close()

    def _form(self, ctx: Context, *, digests: bool = False) -> Form:
        content_type = form_type(ctx)
        if content_type is None:
            raise UnsupportedMediaType('send a form (multipart/form-data) with a part "file"')
        check_headers(ctx, self._limits.size)
        return Form(UploadBody(ctx).receive, content_type, self._limits, digests=digests)

    async def _store(self, ctx: Context, chunks: Any, filename: str, content_type: str | None) -> StoredFile:
        owner = await owner_of(ctx, self._desk.config.file_scope)
        return await self._desk.store(
            chunks, filename=filename, content_type=content_type, owner=owner, ctx=ctx
        )

    async def upload(self, ctx: Context) -> None:
        """Store the part `file` of a form while it arrives, or one that was taken in."""
        new_file: StoredFile | None = None
        try:
            with uploading(ctx):
                if ctx.form is not None:
                    for file in ctx.form.waiting.values():
                        new_file = await self._store(ctx, file.stream(), file.filename, file.content_type)
                else:
                    async for part in _file_parts(self._form(ctx)):
                        new_file = await self._store(ctx, part, part.filename or "", part.content_type)
        except Exception:
            if new_file is not None:
                await self._desk.condemn((new_file.key,))
            raise
        except BaseException:  # told to end at once, so others have to clean up
            if new_file is not None:
                ctx.runtime.tasks.start(self._desk.condemn((new_file.key,)), "clean-up of an upload")
            raise
        if new_file is None:
            raise NoFile()
        names = ("key", "content_type", "size", "filename")
        ctx.response = Response(201, {name: getattr(new_file, name) for name in names})
        if ctx.form is not None:
            ctx.form.answer = ctx.response
            ctx.form.stored_keys.append(new_file.key)

    async def receive(self, ctx: Context, call_next: Next) -> None:
        """Store the file that a signed URL was made for; nothing else opens this route."""
        key = self._key_of(ctx)
        grant = self._signer.check_upload(key, _query_of(ctx))
        if grant is None:
            raise FileNotFound()
        _check_upload(ctx, grant)
        with uploading(ctx):
            await self._desk.receive(
                key, _bytes_of(ctx), max_size=grant.max_size, content_type=grant.content_type
            )
        ctx.response = Response(204)

    # -- reading

    async def read_openly(self, ctx: Context, call_next: Next) -> None:
        """Serve what is open to everybody; a URL with a wrong signature opens nothing."""
        key, query = self._key_of(ctx), _query_of(ctx)
        if "signature" in query:
            grant = self._signer.check_read(key, query)
            if grant is None:
                raise FileNotFound()
            target = await self._access.look_up(ctx, key)
            await answer_with_file(
                ctx,
                self._desk,
                target.file,
                is_public=False,
                as_attachment=grant.download or target.as_attachment,
                filename=grant.filename,
            )
            return
        target = await self._access.look_up(ctx, key)
        if target.is_public:
            await answer_with_file(
                ctx, self._desk, target.file, is_public=True, as_attachment=target.as_attachment
            )
            return
        ctx.asked_file = target
        await call_next()

    async def read(self, ctx: Context) -> None:
        """Serve a file to a caller who passed the auth step."""
        target = ctx.asked_file
        await self._access.require_readable(ctx, target)
        await answer_with_file(
            ctx, self._desk, target.file, is_public=False, as_attachment=target.as_attachment
        )

    # -- deleting

    async def delete(self, ctx: Context) -> None:
        """Give up a file that no record names."""
        key = self._key_of(ctx)
        await self._access.require_deletable(ctx, key)
        await self._desk.discard(key)
        ctx.response = Response(204)

    @property
    def _signer(self) -> UrlSigner:
        signer = self._desk.signer
        assert signer is not None, "the server has started"
        return signer

    def _key_of(self, ctx: Context) -> str:
        """The key in the path, decoded once; 400 for none and for one that cannot be decoded."""
        raw: bytes | None = ctx.scope.get("raw_path")
        if not raw:  # a server that does not tell how the path was sent has decoded it
            key = ctx.params["key"]
        else:
            before = self._prefix.count("/") + ctx.scope.get("root_path", "").count("/")
            raw_key = _cut_prefix(raw, self._prefix, ctx.scope.get("root_path", ""), before)
            if raw_key is None:
                raise FileNotFound()
            if _BROKEN_ESCAPE.search(raw_key):
                raise MissingKey("the key in the path is not encoded as it should be")
            try:
                key = unquote_to_bytes(raw_key).decode()
            except UnicodeDecodeError:
                raise MissingKey("the key in the path is no UTF-8") from None
        if not key:
            raise MissingKey()
        return key


async def _file_parts(form: Form) -> AsyncIterator[FormPart]:
    """The part `file`; what follows it is read to the end, and may not be another."""
    is_first = True
    async for part in form:
        if part.name == "file" and part.filename is not None:
            if not is_first:
                raise MultipartError('the form has more than one part "file"')
            is_first = False
            yield part


async def _spool_part(part: FormPart, spool: Spool) -> UploadedFile:
    start = spool.size
    async for chunk in part:
        await spool.write(chunk)
    return UploadedFile(
        "file", part.filename or "", part.content_type or "", size=spool.size - start, spool=spool
    )


def _cut_prefix(raw: bytes, prefix: str, root: str, before: int) -> bytes | None:
    """What follows the prefix in the path as it was sent; None when the prefix was not written plainly."""
    for count, start in ((before, root + prefix), (prefix.count("/"), prefix)):
        parts = raw.split(b"/", count)
        if len(parts) == count + 1:
            beginning = unquote_to_bytes(b"/".join(parts[:count]) + b"/")
            if beginning == start.encode():
                return parts[count]
    return None


def _respond(ctx: Context) -> None:
    """The response step, which finds the answer made."""
    if ctx.response is None:
        raise no_answer_error(ctx)


def _query_of(ctx: Context) -> dict[str, str]:
    query_string = ctx.scope["query_string"]
    return dict(pairs(query_string)) if query_string else {}


def _check_upload(ctx: Context, grant: UploadGrant) -> None:
    """Refuse a file of another type or size than the URL was made for, before a byte of it is read."""
    bare_type = (ctx.header("content-type") or "").partition(";")[0].strip().lower()
    if bare_type != grant.content_type.partition(";")[0].strip().lower():
        raise FileTypeNotAllowed(f"this URL takes {grant.content_type}")
    size = ctx.header("content-length") or ""
    if grant.max_size is not None and size.isdigit() and int(size[:18]) > grant.max_size:
        raise FileTooLarge(f"the file has more than {grant.max_size} bytes")


async def _bytes_of(ctx: Context) -> AsyncIterator[bytes]:
    """The body as it arrives."""
    receive = UploadBody(ctx).receive
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone()
        if message.get("body"):
            yield message["body"]
        more = bool(message.get("more_body"))
