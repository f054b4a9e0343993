"""Who reaches what: open routes (T101 to T109), rows of tenants (T111 to T113), secrets (T114 to T118).

And what an erasure of a person would leave (T181).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from maniflex.doctor.check import (
    ACTIONS,
    FILES_AND_SEARCH,
    READS,
    WRITES,
    DeclarationCheck,
    GuardedRoute,
    Problem,
    Severity,
    Subject,
    at_place,
    place_of_function,
    texts_in_sources,
    where_of,
)
from maniflex.erasure.inventory import forgotten_fields, forgotten_models
from maniflex.middleware.auth.authenticator import Authenticator
from maniflex.middleware.auth.credential_store import RefreshToken
from maniflex.middleware.db.scopes import TenantRule
from maniflex.middleware.response.cross_origin import Cors
from maniflex.middleware.service.service_entry import HashEntry, PasswordEntry
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind
from maniflex.pipeline.entry import Entry, SecretKeeper, require_field
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.rules.scopes import ScopeRule, unique_among_all

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


# Rows of a tenant that others may see: models without a rule, wide uniqueness (T111 to T113).


def unbound_models(subject: Subject) -> Iterator[Problem]:
    """Models with the column that others are bound by."""
    for rule, meta in _left_out(subject):
        if rule.path in meta.by_name:
            yield Problem(
                where=where_of(meta.cls),
                why=f"it has {rule.path!r}, by which other models are bound to the caller's tenant, and is"
                " not bound itself: every tenant sees the rows of all",
                fix=f"add {meta.name} to models= of {rule.name}, or to its shared= if all tenants have it"
                " in common",
                about=(meta.name,),
            )


def unbound_children(subject: Subject) -> Iterator[Problem]:
    """Models whose rows belong to rows of a tenant, and that have no tenant of their own."""
    bound_names = {meta.name for rule, meta in _bound_pairs(subject) if isinstance(rule, TenantRule)}
    for rule, meta in _left_out(subject):
        parents = [r for r in meta.relations.values() if r.kind is RelationKind.BELONGS_TO]
        parent = next((relation for relation in parents if relation.target in bound_names), None)
        if parent is not None and rule.path not in meta.by_name and not meta.options.headless:
            yield Problem(
                where=where_of(meta.cls),
                why=f"its rows belong to {parent.target}, which is bound to the caller's tenant, and are not"
                " bound themselves: every tenant sees the rows of all",
                fix=f'server.pipeline.auth.register(db.force_filter_via("{parent.name}", "{rule.path}",'
                f" lambda ctx: ctx.require_auth().tenant_id), models=[{meta.name}]), or {meta.name} in"
                f" shared= of {rule.name}",
                about=(meta.name,),
            )


def _bound_pairs(subject: Subject) -> Iterator[tuple[ScopeRule, ModelMeta]]:
    for entry, seat in subject.placement.seats:
        if isinstance(entry, ScopeRule):
            for meta in entry.bound_models(seat):
                yield entry, meta


def _left_out(subject: Subject) -> Iterator[tuple[TenantRule, ModelMeta]]:
    """The models that no rule binds where another is bound to a tenant, each with the rule that could."""
    bound_names = {meta.name for _, meta in _bound_pairs(subject)}
    rules = [entry for entry, _ in subject.placement.seats if isinstance(entry, TenantRule)]
    for meta in subject.own_models:
        if meta.name not in bound_names and rules and all(rule.may_bind(meta) for rule in rules):
            yield rules[0], meta


def unique_across_tenants(subject: Subject) -> Iterator[Problem]:
    for rule, meta, field in unique_among_all(subject.placement):
        if isinstance(rule, TenantRule):
            yield Problem(
                where=where_of(meta.cls, field.name),
                why="it is unique among the rows of all tenants, so a refusal tells one what another has",
                fix=f'{field.name}: ... = field(unique="{rule.path}")',
                about=(meta.name, f"{meta.name}.{field.name}"),
            )


SCOPE_CHECKS = (
    DeclarationCheck(
        "T111",
        Severity.ERROR,
        "a model with the tenant's column that is not bound while others are",
        unbound_models,
    ),
    DeclarationCheck(
        "T112",
        Severity.ERROR,
        "a model that belongs to one bound to a tenant, and is not bound itself",
        unbound_children,
    ),
    DeclarationCheck(
        "T113",
        Severity.WARNING,
        "a field of a model bound to a tenant that is unique across all tenants",
        unique_across_tenants,
    ),
)


# Secrets that show: fields, passwords, keys that sign (T114 to T118).


_SECRET = re.compile(r"(^|_)(password|passwd|passphrase|pwd|secret|token|api_?key|private_?key)$")
_PERSONAL = re.compile(r"(^|_)(ssn|iban|card|card_number|card_no|cvc|cvv|pin)$")
_PASSWORD = re.compile(r"(^|_)(password|passwd|pwd)$")
Holder = tuple[str, Callable[[str], bool]]  # a name, and whether a text is its secret
_TEXTS = frozenset({Kind.TEXT, Kind.BYTES, Kind.JSON})
_SHORTEST = 4  # letters of a text that can be a secret
_MOST_PLACES = 20


def shown_secrets(subject: Subject) -> Iterator[Problem]:
    for meta, field in _fields(subject, _SECRET):
        yield _problem_of(meta, field, Severity.ERROR)
    for meta, field in _fields(subject, _PERSONAL):
        yield _problem_of(meta, field, Severity.WARNING)


def _problem_of(meta: ModelMeta, field: FieldMeta, severity: Severity) -> Problem:
    return Problem(
        where=where_of(meta.cls, field.name),
        why="its name says that it is a secret, and every answer with the record shows it",
        fix=f"{field.name}: ... = field(writeonly=True), or hidden=True if clients never send it, or"
        " encrypted=True if answers have to show it and the database must not",
        about=(meta.name, f"{meta.name}.{field.name}"),
        severity=severity,
    )


def _fields(subject: Subject, pattern: re.Pattern[str]) -> Iterator[tuple[ModelMeta, FieldMeta]]:
    """The fields of such a name that answers show."""
    for meta in subject.own_models:
        for field in meta.fields:
            if field.kind in _TEXTS and field.enum is None and not field.secret and _is_named(field, pattern):
                yield meta, field


def _is_named(field: FieldMeta, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(name.lower()) for name in (field.name, field.api))


def plain_passwords(subject: Subject) -> Iterator[Problem]:
    hashed = {
        (meta.name, field.name)
        for entry, seat in subject.placement.seats
        if isinstance(entry, HashEntry)
        for meta in seat.models
        if (field := meta.field(entry.sets)) is not None
    }
    for meta in subject.own_models:
        for field in meta.fields if _is_written(subject, meta) else ():
            is_password = field.kind is Kind.TEXT and _is_named(field, _PASSWORD)
            if is_password and field.name not in meta.closed and (meta.name, field.name) not in hashed:
                may_hash = _has_own_middleware(subject, meta)
                yield Problem(
                    where=where_of(meta.cls, field.name),
                    why="unless middleware of your own hashes them, passwords are stored as clients send them"
                    if may_hash
                    else "passwords are stored as clients send them, for all who get a copy of the database",
                    fix=f'server.pipeline.service.register(service.hash_field("{field.name}"),'
                    f" models=[{meta.name}])",
                    about=(meta.name, f"{meta.name}.{field.name}"),
                    severity=Severity.WARNING if may_hash else None,
                )


def _is_written(subject: Subject, meta: ModelMeta) -> bool:
    """Whether clients create or change records of the model."""
    writes = (Operation.CREATE, Operation.UPDATE)
    return any(r.endpoint.model is meta and r.endpoint.operation in writes for r in subject.routes)


def _has_own_middleware(subject: Subject, meta: ModelMeta) -> bool:
    """Whether functions of the application see a record before it is stored; one of them may hash it."""
    pipeline = subject.placement.pipeline
    return any(
        not isinstance(r.fn, Entry) and r.matches(meta, Operation.CREATE, item=False)
        for step in (pipeline.deserialize, pipeline.validate, pipeline.service, pipeline.db)
        for r in step.registrations
    )


def lasting_sessions(subject: Subject) -> Iterator[Problem]:
    """Passwords whose change signs nobody out, where the server gives tokens out."""
    if not subject.runtime.stores.get(RefreshToken):
        return
    for entry, seat in subject.placement.seats:
        if isinstance(entry, HashEntry) and not isinstance(entry, PasswordEntry):
            for meta in seat.models:
                field = require_field(meta, entry.sets)
                if _is_named(field, _PASSWORD):
                    yield Problem(
                        where=where_of(meta.cls, field.name),
                        why="whoever has a session, or an API key, keeps it when the password is changed",
                        fix=f'service.hash_field("{field.name}", ends=tokens)',
                        about=(meta.name, f"{meta.name}.{field.name}"),
                    )


def short_secrets(subject: Subject) -> Iterator[Problem]:
    named_pairs: set[tuple[str, str]] = set()
    for entry, seat in subject.seats:
        for problem in entry.production_problems(seat) if isinstance(entry, SecretKeeper) else ():
            if (entry.name, problem) not in named_pairs:
                named_pairs.add((entry.name, problem))
                yield Problem(
                    where=entry.name,
                    why=problem,
                    fix="a secret of 32 random bytes from the environment:"
                    ' python -c "import secrets; print(secrets.token_urlsafe(32))"',
                    about=(entry.name,),
                )


def written_secrets(subject: Subject) -> Iterator[Problem]:
    """Secrets that stand in the source, where everybody with the repository has them."""
    entries = {id(entry): entry for entry, _ in subject.seats}.values()
    keepers = [entry for entry in entries if isinstance(entry, SecretKeeper)]
    holders: list[Holder] = [(entry.name, entry.knows_secret) for entry in keepers]
    if subject.config.files_signing_key is not None:
        holders.append(("files_signing_key", subject.config.files_signing_key.__eq__))
    return islice(_search(holders), _MOST_PLACES)


def _search(holders: list[Holder]) -> Iterator[Problem]:
    for text, place in texts_in_sources() if holders else ():
        for name in {name for name, knows in holders if len(text) >= _SHORTEST and knows(text)}:
            yield Problem(
                where=place,
                why=f"the secret of {name} is written here, so everybody who can read the code can sign in"
                " as anybody",
                fix='os.environ["APP_SECRET"] in its place, with another secret: this one is known',
                about=(name, place),
            )


def forgotten_persons(subject: Subject) -> Iterator[Problem]:
    """Asked where a model has a subject: only there anybody is erased."""
    metas = subject.own_models
    if all(meta.options.subject is None for meta in metas):
        return
    for meta, field in forgotten_fields(metas):
        has_subject = meta.options.subject is not None
        yield Problem(
            where=where_of(meta.cls, field.name),
            why="it is called like something of a person, and erasing one leaves it as it is"
            + ("" if has_subject else "; the model has no subject either"),
            fix="field(personal=True)" if has_subject else "subject= of the model and field(personal=True)",
            about=(meta.name, f"{meta.name}.{field.name}"),
        )
    for meta, relation in forgotten_models(metas):
        yield Problem(
            where=where_of(meta.cls),
            why=f"it belongs to a person by {relation} and has no subject, so erasing one leaves its records",
            fix=f"class {meta.name}(Model, subject=...), or server.doctor_ignore with a reason",
            about=(meta.name,),
        )


def open_hubs(subject: Subject) -> Iterator[Problem]:
    """Streams that take everybody."""
    if subject.has_open_hub:
        yield Problem(
            where="server.realtime",
            why="it asks nobody who they are: everybody may connect and hears what anonymous callers may see",
            fix="server.pipeline.auth.register(auth.jwt(...)), or enable(authenticator=...); or"
            ' server.doctor_ignore("T182", reason=...) where that is meant',
            about=("server.realtime",),
        )


SECRET_CHECKS = (
    DeclarationCheck("T114", Severity.ERROR, "a field named like a secret that answers show", shown_secrets),
    DeclarationCheck("T116", Severity.WARNING, "a password whose change ends no session", lasting_sessions),
    DeclarationCheck("T115", Severity.ERROR, "a password that is stored as it is sent", plain_passwords),
    DeclarationCheck(
        "T117", Severity.ERROR, "a secret or key so short that it can be guessed", short_secrets
    ),
    DeclarationCheck("T118", Severity.ERROR, "a secret that is written in the source", written_secrets),
    DeclarationCheck(
        "T181", Severity.WARNING, "something of a person that an erasure leaves", forgotten_persons
    ),
    DeclarationCheck("T182", Severity.WARNING, "a hub that asks nobody who they are", open_hubs),
)
