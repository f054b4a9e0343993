"""What files add to a server with a storage or file fields: routes, steps of other routes, their mistakes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field

from maniflex.features.actions import Action
from maniflex.features.files.attachments import attachment_endpoints
from maniflex.features.files.docs import mint_docs
from maniflex.features.files.routes import file_endpoints
from maniflex.features.files.uploads import ModelUploads
from maniflex.files.api import below_root
from maniflex.files.desk import FileDesk
from maniflex.files.owner import owner_of
from maniflex.model.file_field import FileRules, file_fields
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import Entry
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import takes
from maniflex.pipeline.response import Response
from maniflex.pipeline.routes import TRIMMED, Endpoint, RouteBuilder
from maniflex.pipeline.rules.transforms import Transform
from maniflex.pipeline.runtime import Runtime


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
            runtime.transforms.setdefault(meta.cls, []).extend(url_transforms(meta, desk))


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
    """The values of one field on a page; what is empty stays as it is."""
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
