"""`GET /{table}/{id}/{field}`: the file of a record, behind everything that guards reading the record."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from maniflex.errors import FileNotFound, FileNotSet, InvalidQuery, NotFound
from maniflex.features.files.docs import attachment_docs
from maniflex.features.files.downloads import Download, download_response
from maniflex.files.desk import FileDesk
from maniflex.files.model import FileState, StoredFile
from maniflex.model.file_field import FileRules, file_fields
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.response import no_answer_error
from maniflex.pipeline.routes import Endpoint, RouteBuilder
from maniflex.pipeline.steps.db import Database
from maniflex.pipeline.steps.policies import ShownRows

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
        defaults: dict[str, Default] = {"db": read}
        policies = runtime.policies.get(model.name)
        if policies is not None:
            own = policies.of(Operation.READ_ATTACHMENT, item=True)
            defaults["policies"] = ShownRows(store, runtime.policies, own).judge_one
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
        if self._model.cls in ctx.runtime.redactions and self._field.api in await ctx.redacted(
            self._model.cls
        ):
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
