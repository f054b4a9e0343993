"""What files add to a server with a storage or file fields: routes, steps of other routes, their mistakes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field

from maniflex.db.port import Row
from maniflex.db.store import Store
from maniflex.errors import NotFound
from maniflex.features.actions import Action
from maniflex.features.files.docs import mint_docs
from maniflex.features.files.downloads import FileAccess, attachment_endpoints, record_readers
from maniflex.features.files.forms import FormReader, FormRequest, form_type
from maniflex.features.files.routes import file_endpoints
from maniflex.files.api import below_root
from maniflex.files.desk import FileDesk
from maniflex.files.links import KeyNamer
from maniflex.files.owner import owner_of
from maniflex.model.field import FileRules, file_fields
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.body import Body, uploading
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry
from maniflex.pipeline.languages import BodyTexts
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import takes
from maniflex.pipeline.response import Response, status_of
from maniflex.pipeline.routes import TRIMMED, Endpoint, RouteBuilder
from maniflex.pipeline.rules.transforms import Transform
from maniflex.pipeline.runtime import Runtime
from maniflex.pipeline.scope import singleton_id
from maniflex.query.query import Scope


def prepare_file_routes(routes: RouteBuilder, models: Iterable[ModelMeta]) -> None:
    """Let the routes of models with file fields take forms, and show URLs where their fields ask for it."""
    runtime = routes.runtime
    desk: FileDesk | None = runtime.file_desk
    if desk is None:
        return
    for meta in models:
        if not file_fields(meta):
            continue
        runtime.file_routes[meta.cls] = ModelUploads(routes, runtime.stores[meta.cls], desk)
        if desk.has_storage:
            for transform in url_transforms(meta, desk):
                runtime.rules.add_transform(meta.cls, transform)


def path_without_storage(runtime: Runtime, models: Iterable[ModelMeta], actions: Iterable[Action]) -> str:
    """The path of files where they cannot be served for want of a storage; empty where others have it."""
    config, desk = runtime.config, runtime.file_desk
    has_storage = desk is not None and desk.has_storage
    if has_storage or not config.files_routes or any(_path_takers(config.files_path, models, actions)):
        return ""
    return config.path_prefix + config.files_path


def _path_takers(path: str, models: Iterable[ModelMeta], actions: Iterable[Action]) -> Iterator[str]:
    """What else wants the path of files."""
    for meta in models:
        if not meta.options.headless and f"/{meta.table}" == path:
            yield f"{meta.name}: its path {path!r}"
    for action in actions:
        if action.path == path or action.path.startswith(f"{path}/"):
            yield f"action {action.method} {action.path}: the path"


def all_file_endpoints(
    routes: RouteBuilder, models: Sequence[ModelMeta], is_meant: Callable[[Endpoint], bool]
) -> Iterator[Endpoint]:
    """The routes of attachments, of presigned uploads and of single files; none without a storage.

    `is_meant` says of an open route that the application says so.
    """
    desk: FileDesk | None = routes.runtime.file_desk
    if desk is None or not desk.has_storage:
        return
    for meta in models:
        yield from attachment_endpoints(routes, meta, desk)
        yield from mint_endpoints(routes, meta, desk)
    if routes.runtime.config.files_routes:
        endpoints = list(file_endpoints(routes, desk))
        _warn_of_open_routes(routes, {e.operation for e in endpoints if not is_meant(e)})
        yield from endpoints


def _warn_of_open_routes(routes: RouteBuilder, judged_operations: Collection[Operation]) -> None:
    """Say which routes of single files anybody may use, because no auth middleware stands before them."""
    operations = (Operation.UPLOAD_FILE, Operation.READ_FILE, Operation.DELETE_FILE)
    open_operations = [
        one for one in operations if one in judged_operations and not routes.composer.has_auth(one)
    ]
    if open_operations:
        routes.runtime.logger.warning(
            "%s: no auth middleware covers %s, so anybody may use them",
            routes.runtime.config.files_path,
            ", ".join(open_operations),
        )


def file_route_problems(
    runtime: Runtime, models: Sequence[ModelMeta], actions: Sequence[Action]
) -> Iterator[str]:
    """Middleware of the file routes that cannot run, and others that want their path."""
    config, desk = runtime.config, runtime.file_desk
    for fn in config.files_middleware:
        if not isinstance(fn, Entry) and not takes(fn, 2):
            yield f"files_middleware: {fn!r} is called with (ctx, next), which it does not take"
    if desk is None or not desk.has_storage or not config.files_routes:
        return
    for taker in _path_takers(config.files_path, models, actions):
        yield f"{taker} is the one of files; choose another files_path"


# Keys → URLs in answers, of fields with `acl="signed"` or `acl="public"`; all of a page in one call.


_SHOWN_IN = frozenset({Operation.LIST, Operation.READ, Operation.CREATE, Operation.UPDATE})


def url_transforms(model: ModelMeta, desk: FileDesk) -> Iterator[Transform]:
    """What changes the records of a model on their way into answers; nothing where all files are private."""
    for field, rules in file_fields(model):
        if field.visible and rules.acl != "private":
            change = partial(_show_urls, desk, rules)
            # A version has the key: its file may be gone, and whoever reads histories is not handed files.
            yield Transform(field, partial(_show_url, desk, rules), _SHOWN_IN, change, of_past=False)


async def _show_urls(desk: FileDesk, rules: FileRules, ctx: Context, values: Sequence[Any]) -> list[Any]:
    """The values of one field on a page with URLs in place of keys; empty values stay."""
    keys = [key for value in values for key in _keys(value)]
    signed = await desk.urls(keys, rules.acl, download=rules.inline is False) if keys else {}
    urls = {key: below_root(ctx, url) for key, url in signed.items()}
    return [
        [urls[key] for key in value] if isinstance(value, list) else urls.get(value, value)
        for value in values
    ]


async def _show_url(desk: FileDesk, rules: FileRules, ctx: Context, value: Any) -> Any:
    [shown] = await _show_urls(desk, rules, ctx, [value])
    return shown


def _keys(value: Any) -> Sequence[str]:
    if not value:
        return ()
    return value if isinstance(value, list) else (value,)


# `POST /{table}/{field}/upload-url`: a URL that a client uploads one file of a field to.


_MOST_BYTES = 2**53


class UploadWish(BaseModel):
    """The file that a client wants to upload."""

    filename: Annotated[str, Field(min_length=1, max_length=255)]
    content_type: Annotated[str, Field(pattern=r"^[\w.+-]{1,100}/[\w.+-]{1,100}$")]
    size: Annotated[int, Field(ge=0, le=_MOST_BYTES)] | None = None


def mint_endpoints(routes: RouteBuilder, model: ModelMeta, desk: FileDesk) -> Iterator[Endpoint]:
    """The routes of a model's fields with `upload="presigned"`."""
    if model.options.headless:
        return
    for field, rules in file_fields(model):
        if rules.upload == "presigned" and not (field.hidden or field.readonly):
            yield from routes.with_options([_endpoint(routes, model, desk, field, rules)])


def _endpoint(
    routes: RouteBuilder, model: ModelMeta, desk: FileDesk, field: FieldMeta, rules: FileRules
) -> Endpoint:
    async def mint(ctx: Context) -> None:
        wish: UploadWish = await ctx.bind_json(UploadWish)
        owner = await owner_of(ctx, desk.config.file_scope)
        minted = await desk.mint(
            filename=wish.filename, content_type=wish.content_type, size=wish.size, owner=owner, rules=rules
        )
        upload = minted.upload
        ctx.result = {
            "url": below_root(ctx, upload.url),
            "method": upload.method,
            "fields": dict(upload.fields),
            "headers": dict(upload.headers),
            "key": minted.key,
            "max_size": minted.max_size,
            "expires_at": upload.expires_at,
        }

    def respond(ctx: Context) -> None:
        if ctx.response is None:
            ctx.response = Response(200, ctx.result)

    return routes.endpoint(
        "POST",
        f"/{model.table}/{field.api}/upload-url",
        Operation.PRESIGN_UPLOAD,
        model=model,
        steps=(*TRIMMED, "mint"),
        defaults={"mint": mint},
        respond=respond,
        item=False,
        about=mint_docs(model, field, UploadWish),
    )


# The steps of creates and updates that have to do with files.
#
# A form is read by the deserialize step, and its files are stored at the end of the validate step: behind
# everything that may refuse the values, and before any transaction of the service step begins. Keys that
# a body names are checked there too.


Touchable = Callable[[Context], Scope]


class ModelUploads:
    """The `FileRoutes` of one model."""

    def __init__(self, routes: RouteBuilder, store: Store, desk: FileDesk) -> None:
        self._routes = routes
        self._store = store
        self._desk = desk
        self._fields = file_fields(store.meta)

    @property
    def takes_forms(self) -> bool:
        return self._desk.has_storage and any(not (f.readonly or f.hidden) for f, _ in self._fields)

    def read_body(self, read_json: Default, operation: Operation, touchable: Touchable) -> Default:
        is_update = operation is Operation.UPDATE
        closed = frozenset(
            f.api for f, _ in self._fields if f.readonly or f.hidden or (is_update and f.immutable)
        )
        reader = FormReader(self._store.meta, self._desk, closed)
        texts = BodyTexts(self._store.meta)

        async def read(ctx: Context) -> None:
            content_type = form_type(ctx)
            if content_type is None:
                outcome = read_json(ctx)
                if outcome is not None:
                    await outcome
                return

            async def require_record() -> None:
                if is_update:
                    await self._require_record(ctx, touchable(ctx))

            await reader.read(ctx, content_type, require_record)
            if texts:
                texts.fold(ctx.form.values, operation, ctx.locale)
            earlier, ctx._body = ctx._body, Body(ctx.form.values)
            for name, value in () if earlier is None else earlier.items():  # set before there was a body
                ctx._body.stamp(name, value)

        return read

    def settle_files(self, operation: Operation, touchable: Touchable, *, restores: bool = False) -> Default:
        is_update = operation is Operation.UPDATE
        access = FileAccess(self._desk, record_readers(self._routes, self._store.meta, operation))

        async def settle(ctx: Context) -> None:
            values = _values(ctx)
            files = [
                (field, rules)
                for field, rules in self._fields
                if _name_in(values, field, ctx) in values and ctx._body.is_from_client(field.api)
            ]
            if files:
                row = await self._require_record(ctx, touchable(ctx)) if is_update else None
                await self._settle(ctx, access, values, files, row, restores=restores)
            if ctx.form is not None:
                ctx.form.is_settled = True

        return settle

    async def clean_up(self, ctx: Context, call_next: Callable[[], Awaitable[None]]) -> None:
        try:
            await call_next()
        except Exception:
            await self._give_up(ctx)
            raise
        except BaseException:  # told to end at once, so others have to clean up
            ctx.runtime.tasks.start(self._give_up(ctx), "clean-up of an upload")
            raise
        else:
            form: FormRequest | None = ctx.form
            has_failed = ctx.response is not None and status_of(ctx.response) >= 400
            if form is not None and (has_failed or not form.is_settled):
                await self._give_up(ctx)
        finally:
            if ctx.form is not None:
                ctx.form.spool.close()

    async def _give_up(self, ctx: Context) -> None:
        """Condemn what was stored and no record names; what cannot be condemned now expires."""
        if ctx.form is None or not ctx.form.stored_keys:
            return
        try:
            await self._desk.condemn(ctx.form.stored_keys)
        except Exception as error:
            ctx.logger.warning("files of a request that failed are left for the sweep: %s", error)

    # -- keys and files

    async def _settle(
        self,
        ctx: Context,
        access: FileAccess,
        values: dict[str, Any],
        files: Iterable[tuple[FieldMeta, FileRules]],
        row: Row | None,
        *,
        restores: bool,
    ) -> None:
        """Check every key that is named, then store every file; so a wrong key costs no upload."""
        kept_values: dict[str, Any] = {}
        owner = await owner_of(ctx, self._desk.config.file_scope)
        namer = KeyNamer(self._desk, owner, partial(access.is_in_reach, ctx), restores=restores)
        for field, rules in files:
            name = _name_in(values, field, ctx)
            kept_values[name] = await self._check(
                ctx, namer, field, rules, values[name], self._current(field, row)
            )
        for field, rules in files:
            name = _name_in(values, field, ctx)
            value = await self._store_waiting(ctx, rules, kept_values[name])
            values[name] = value
            ctx._body.replace(field.api, value)
        if ctx.changes is not None:
            ctx._record = None  # it is made of the changes when it is asked for

    async def _check(
        self,
        ctx: Context,
        namer: KeyNamer,
        field: FieldMeta,
        rules: FileRules,
        value: Any,
        current: frozenset[str],
    ) -> Any:
        """The value with the URLs of current files as their keys; keys that may not be named are refused."""
        values = value if rules.is_list else [value]
        if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
            return value  # null, or not validated because that step was replaced
        form: FormRequest | None = ctx.form
        own_keys = current if form is None else current | form.waiting.keys() | set(form.stored_keys)
        keys = await namer.name_keys(values, own_keys, rules, field.api)
        return keys if rules.is_list else keys[0]

    async def _store_waiting(self, ctx: Context, rules: FileRules, value: Any) -> Any:
        form: FormRequest | None = ctx.form
        values = value if rules.is_list else [value]
        if form is None or not form.waiting or not isinstance(values, list):
            return value
        keys = [await self._store_one(ctx, form, rules, key) for key in values]
        return keys if rules.is_list else keys[0]

    async def _store_one(self, ctx: Context, form: FormRequest, rules: FileRules, key: Any) -> Any:
        file = form.waiting.get(key) if isinstance(key, str) else None
        if file is None:
            return key
        with uploading(ctx):
            new_file = await self._desk.store(
                file.stream(),
                filename=file.filename,
                content_type=file.content_type,
                owner=await owner_of(ctx, self._desk.config.file_scope),
                rules=rules,
                ctx=ctx,
            )
        form.stored_keys.append(new_file.key)
        file.key = new_file.key
        return new_file.key

    # -- the record of an update

    async def _require_record(self, ctx: Context, scope: Scope) -> Row | None:
        """The row that is to change, which the caller may; None of a singleton that is not made yet."""
        store, meta = self._store, self._store.meta
        is_singleton = bool(meta.options.singleton)
        record_id = singleton_id(meta, ctx.forced) if is_singleton else ctx.resource_id
        row = await store.find(record_id, scope=scope)
        if row is None:
            if is_singleton:
                return None
            raise NotFound(model=meta.name, record_id=record_id)
        await ctx.runtime.rules[meta.cls].judge_of_changes.require_row(ctx, row)
        error = store.lock_refusal(row)
        if error is not None:
            raise error
        return row

    def _current(self, field: FieldMeta, row: Row | None) -> frozenset[str]:
        """The keys that the stored record has in the field."""
        value = None if row is None else self._store.record(row).__dict__.get(field.name)
        return frozenset([value] if isinstance(value, str) else value or ())


def _values(ctx: Context) -> dict[str, Any]:
    """Where the values of the record are by now; where the validate step was replaced, still in the body."""
    if ctx.changes is not None:
        return ctx.changes
    if ctx._record is not None:
        values: dict[str, Any] = ctx._record.__dict__
        return values
    return {} if ctx._body is None else ctx._body.values_


def _name_in(values: Mapping[str, Any], field: FieldMeta, ctx: Context) -> str:
    in_body = ctx.changes is None and ctx._record is None
    return field.api if in_body else field.name
