"""Who can reach what: open routes, public pages, origins, static files, old credentials (T101 to T109)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from maniflex.doctor.check import DeclarationCheck, Problem, Severity
from maniflex.doctor.open_routes import ACTIONS, FILES_AND_SEARCH, READS, WRITES, GuardedRoute
from maniflex.doctor.sources import at_place, place_of_function, where_of
from maniflex.doctor.subject import Subject
from maniflex.middleware.auth.authenticator import Authenticator
from maniflex.middleware.response.cross_origin import Cors
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.operation import Operation

PANEL = "the panel"  # as the owner of its routes
_MOST_FILES = 20_000  # of a static directory that are looked at
_EXAMPLES = 5
_SOURCES = frozenset({".py", ".pyc", ".sql", ".sh", ".ipynb"})
_DATA = frozenset({".db", ".sqlite", ".sqlite3", ".pem", ".key", ".p12", ".pfx", ".kdbx", ".log", ".bak"})
_DECIDE = (
    "server.pipeline.auth.register(auth.jwt(...){models}), or auth.allow_anonymous() if it is meant"
    " to be open"
)


def open_writes(subject: Subject) -> Iterator[Problem]:
    yield from _open_models(subject, WRITES, "anybody can write to it without signing in")


def open_reads(subject: Subject) -> Iterator[Problem]:
    yield from _open_models(subject, READS, "anybody can read it without signing in")


def _open_models(subject: Subject, code: str, why: str) -> Iterator[Problem]:
    """One problem for each model that has open routes of a kind."""
    routes_of: dict[ModelMeta, list[GuardedRoute]] = {}
    for route in _open_routes(subject, code):
        model = route.endpoint.model
        if model is not None:
            routes_of.setdefault(model, []).append(route)
    for model, routes in routes_of.items():
        names = tuple(str(route) for route in routes)
        yield Problem(
            where=where_of(model.cls),
            why=f"{why}: {', '.join(names)}",
            fix=_DECIDE.format(models=f", models=[{model.name}]"),
            about=(model.name, *names),
        )


def open_actions(subject: Subject) -> Iterator[Problem]:
    handlers = {(action.method, action.path): action.handler for action in subject.actions}
    for route in _open_routes(subject, ACTIONS):
        handler = handlers.get((route.endpoint.method, route.endpoint.path))
        place = "" if handler is None else place_of_function(handler)
        yield Problem(
            where=at_place(str(route), place),
            why="anybody can call the action without signing in",
            fix="server.action(..., middleware=[auth.allow_anonymous()]) if it is meant to be open,"
            " or an authenticator on server.pipeline.auth",
            about=route.names,
        )


def open_search_and_files(subject: Subject) -> Iterator[Problem]:
    for route in _open_routes(subject, FILES_AND_SEARCH):
        operation = route.endpoint.operation
        does = "search all records" if operation is Operation.SEARCH else "store, read or remove files"
        yield Problem(
            where=str(route),
            why=f"anybody can {does} through it without signing in",
            fix=f"server.pipeline.auth.register(auth.jwt(...), operations=[Operation.{operation.name}])",
            about=route.names,
        )


def _open_routes(subject: Subject, code: str) -> Iterator[GuardedRoute]:
    return (route for route in subject.routes if route.is_open and route.code == code)


def open_pages(subject: Subject) -> Iterator[Problem]:
    """The description of the API and the numbers of the server, on an address that others reach."""
    config = subject.config
    if not subject.is_public:
        return
    if config.openapi_enabled and not subject.placement.pipeline.openapi.auth.registrations:
        paths = f"{config.path_prefix}/openapi.json" + (" and /docs" if config.docs_enabled else "")
        yield Problem(
            where=paths,
            why="they show every route and field of the API to anybody who can reach the server",
            fix="server.pipeline.openapi.auth.register(auth.basic(...)), or docs_enabled=False and"
            " openapi_enabled=False",
            about=("/docs", f"{config.path_prefix}/openapi.json"),
        )
    if config.metrics_enabled and config.metrics_token is None:
        yield Problem(
            where="/metrics",
            why="it shows routes and the amount of work to anybody who can reach the server",
            fix='Server(metrics_token=os.environ["METRICS_TOKEN"]), or a proxy that refuses it from outside',
            about=("/metrics",),
        )


def plain_panel(subject: Subject) -> Iterator[Problem]:
    """A panel on a public address, with nothing in front that could speak TLS."""
    config = subject.config
    paths = [route.path for route in subject.routes if route.endpoint.owner == PANEL]
    if paths and subject.is_public and not config.trusted_proxies:
        yield Problem(
            where=min(paths),
            why=f"the panel is on {config.host} over plain http, where passwords and pages can be read on the"
            " way; it lets nobody sign in so",
            fix="a proxy with TLS in front and trusted_proxies=1, or host='127.0.0.1'",
            about=(min(paths), "server.admin"),
        )


def wide_origins(subject: Subject) -> Iterator[Problem]:
    entries = [entry for entry, _ in subject.placement.seats]
    for layer in (*entries, *subject.layers):
        wide = [one for one in ("*", "null") if isinstance(layer, Cors) and layer.origins.allows(one)]
        if wide:
            yield Problem(
                where="response.cors",
                why=f"it lets pages of {'any origin' if '*' in wide else 'files and sandboxed frames'}"
                " read the answers of the API",
                fix='response.cors(["https://app.example.com"]), naming the origins that call it',
                about=("response.cors",),
            )


def unwanted_static_files(subject: Subject) -> Iterator[Problem]:
    """Files in the static directory that no page asks for and strangers look for."""
    config = subject.config
    directory = Path(config.static_dir)
    if config.static_disabled or not str(config.static_dir) or not directory.is_dir():
        return
    names = list(islice(_unwanted_files(directory), _EXAMPLES + 1))
    if names:
        more = " and more" if len(names) > _EXAMPLES else ""
        yield Problem(
            where=str(config.static_dir),
            why=f"everybody can download {', '.join(names[:_EXAMPLES])}{more} below {config.static_prefix}",
            fix="move these files elsewhere, or static_dir= to a directory that holds nothing else",
            about=(str(config.static_dir), "static_dir"),
        )


def _unwanted_files(directory: Path) -> Iterator[str]:
    budget = _MOST_FILES
    for folder, folders, files in os.walk(directory):
        own = [name for name in folders if name.startswith(".") and name != ".well-known"]
        folders[:] = [name for name in folders if name not in own]
        for name in (*own, *files):
            is_hidden = name.startswith(".") and name != ".well-known"
            if is_hidden or Path(name).suffix.lower() in _SOURCES | _DATA:
                yield os.path.relpath(os.path.join(folder, name), directory)
        budget -= len(files)
        if budget < 0:
            return


def unasked_callers(subject: Subject) -> Iterator[Problem]:
    """Tokens and keys of the server's own, with nobody who says whether their user is still there."""
    if subject.runtime.caller_checks:
        return
    names = [
        entry.name
        for entry, _ in subject.seats
        if isinstance(entry, Authenticator) and entry.is_issued_here and not entry.has_verify
    ]
    for name in dict.fromkeys(names):
        yield Problem(
            where=name,
            why="who is deleted, locked out or has lost a role since goes on with the token or key they have",
            fix="server.pipeline.auth.register(auth.verify(read_user)), asked with every request",
            about=(name,),
        )


CHECKS = (
    DeclarationCheck(
        "T101", Severity.ERROR, "a route that writes records and has no rule who may use it", open_writes
    ),
    DeclarationCheck("T102", Severity.ERROR, "an action without a rule who may call it", open_actions),
    DeclarationCheck(
        "T103",
        Severity.ERROR,
        "search or routes of files without a rule who may use them",
        open_search_and_files,
    ),
    DeclarationCheck(
        "T104", Severity.WARNING, "a route that reads records and has no rule who may use it", open_reads
    ),
    DeclarationCheck(
        "T105",
        Severity.WARNING,
        "`/docs`, `/openapi.json` or `/metrics` open on an address others reach",
        open_pages,
    ),
    DeclarationCheck(
        "T106", Severity.WARNING, "the panel on an address others reach, without TLS", plain_panel
    ),
    DeclarationCheck(
        "T107", Severity.WARNING, "`response.cors` that lets every origin read answers", wide_origins
    ),
    DeclarationCheck(
        "T108",
        Severity.ERROR,
        "hidden files, sources, keys or databases in the static directory",
        unwanted_static_files,
    ),
    DeclarationCheck(
        "T109",
        Severity.WARNING,
        "tokens or API keys of its own, and no `verify` that knows whether their user is still there",
        unasked_callers,
    ),
)
