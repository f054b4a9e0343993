"""What files add to a server with a storage or file fields: routes, steps of other routes, their mistakes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from maniflex.features.actions import Action
from maniflex.features.files.attachments import attachment_endpoints
from maniflex.features.files.presigning import mint_endpoints
from maniflex.features.files.routes import file_endpoints
from maniflex.features.files.uploads import ModelUploads
from maniflex.features.files.urls import url_transforms
from maniflex.files.desk import FileDesk
from maniflex.model.file_field import file_fields
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.endpoints import Endpoint
from maniflex.pipeline.entry import Entry
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import takes
from maniflex.pipeline.routes import RouteBuilder
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
