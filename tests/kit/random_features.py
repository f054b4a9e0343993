"""Random applications out of options, entries and features: the same seed gives the same one."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from types import new_class
from typing import Any, Literal

from maniflex import (
    AuthInfo,
    Context,
    LocaleOptions,
    LocaleString,
    Model,
    Next,
    Operation,
    Server,
    scheduled,
    with_transaction,
)
from maniflex import field as typed_field
from maniflex.encryption import MemoryKeyProvider
from maniflex.middleware import auth, db, idempotency, response, service

model_field: Any = typed_field  # options come from a dictionary here
HIDDEN, WRITEONLY = "zz-hidden-zz", "zz-writeonly-zz"
NAMES = ("Team", "Project", "Task", "Note")
TABLES = {name: f"{name.lower()}s" for name in NAMES}
CALLERS: tuple[dict[str, str], ...] = (
    {"x-user": "ann", "x-org": "red", "x-roles": "member"},
    {"x-user": "bob", "x-org": "blue", "x-roles": "member"},
    {"x-user": "root", "x-roles": "admin boss"},
    {},
)


@dataclass
class RandomModel:
    """A model as it was drawn."""

    name: str
    cls: type[Model]
    fields: dict[str, Any]
    options: dict[str, Any]

    @property
    def path(self) -> str:
        return f"/api/{TABLES[self.name]}"


@dataclass
class RandomApplication:
    """A server that has not started, and what it was put together from."""

    server: Server
    models: list[RandomModel]
    parts: list[str] = field(default_factory=list)

    @property
    def makes_events(self) -> bool:
        emits = {"emit", "service.emit", "webhooks", "group"} & set(self.parts)
        return bool(emits) or any("events" in one.options for one in self.models)

    @property
    def has_subject(self) -> bool:
        return any("subject" in one.options for one in self.models)


def make_application(random: Random) -> RandomApplication:
    """Draw an application; what contradicts itself is drawn too, for the start to refuse."""
    locale = LocaleOptions(supported=("en", "de")) if random.random() < 0.4 else LocaleOptions()
    server = Server(background=False, locale=locale)
    server.set_key_provider(MemoryKeyProvider())
    models: list[RandomModel] = []
    for name in NAMES[: random.randint(1, len(NAMES))]:
        models.append(_draw_model(random, name, [one.name for one in models]))
    server.register(*(one.cls for one in models))
    server.pipeline.auth.register(_authenticate)
    application = RandomApplication(server, models)
    _draw_parts(random, application)
    return application


async def _authenticate(ctx: Context, next: Next) -> None:
    headers = ctx.request.headers
    if user := headers.get("x-user"):
        roles = tuple(headers.get("x-roles", "").split())
        ctx.auth = AuthInfo(user, roles, tenant_id=headers.get("x-org", ""))
    await next()


_BLIND = {"blind_index": True}


def _draw_model(random: Random, name: str, parents: list[str]) -> RandomModel:
    chance = random.random
    fields: dict[str, tuple[Any, Any]] = {
        "title": (
            str,
            model_field(
                default="t", filterable=chance() < 0.7, sortable=chance() < 0.7, searchable=chance() < 0.4
            ),
        )
    }
    drawn: tuple[tuple[str, float, Any, dict[str, Any]], ...] = (
        ("org", 0.5, str, {"default": "", "filterable": True}),
        ("owner", 0.5, str, {"default": "", "filterable": True}),
        ("amount", 0.5, int, {"default": 0, "filterable": True, "sortable": True}),
        ("secret", 0.4, str, {"default": HIDDEN, "hidden": True}),
        ("pin", 0.4, str, {"default": WRITEONLY, "writeonly": True}),
        ("ssn", 0.2, str | None, {"default": None, "encrypted": True}),
        (
            "tax_id",
            0.2,
            str | None,
            {"default": None, "encrypted": True, "blind_index": True, "unique": True},
        ),
        ("label", 0.35, LocaleString | None, {"default": None, "filterable": True, "sortable": True}),
        ("code", 0.3, str | None, {"default": None, "unique": True, "ignore_case": True}),
        ("state", 0.3, Literal["draft", "published"], {"default": "draft", "filterable": True}),
        ("meta", 0.3, dict[str, Any], {"default_factory": dict}),
    )
    for field_name, share, kind, options in drawn:
        if chance() < share:
            fields[field_name] = kind, model_field(**options)
    if "state" in fields and chance() < 0.5:
        fields["due"] = Any, scheduled(set_field="state", from_="draft", to="published")
    options = _draw_options(random)
    if parents and chance() < 0.8:
        parent = random.choice(parents)
        on_delete = random.choice(("cascade", "restrict", "set_null"))
        relation = {"relation": parent, "filterable": True, "default": None, "on_delete": on_delete}
        fields[f"{parent.lower()}_id"] = str | None, model_field(**relation)
    if "owner" in fields and chance() < 0.3:
        options["subject"] = "owner"
        fields["phone"] = str | None, model_field(default=None, personal=True)
    return RandomModel(name, _make_class(name, fields, options), dict(fields), options)


def _make_class(name: str, fields: dict[str, tuple[Any, Any]], options: dict[str, Any]) -> type[Model]:
    def fill(namespace: dict[str, Any]) -> None:
        kinds = {one: datetime | None if kind is Any else kind for one, (kind, _) in fields.items()}
        namespace["__annotations__"] = kinds
        namespace.update({one: declared for one, (_, declared) in fields.items()})

    return new_class(name, (Model,), options, fill)


_OPTIONS: tuple[tuple[str, float, Any], ...] = (
    ("versioned", 0.4, True),
    ("events", 0.4, True),
    ("soft_delete", 0.3, True),
    ("optimistic_lock", 0.3, True),
    ("export", 0.3, True),
    ("aggregate", 0.3, True),
    ("retention", 0.2, "90d"),
    ("cursor_field", 0.2, "created_at"),
    ("operations", 0.03, Operation.READS),
)


def _draw_options(random: Random) -> dict[str, Any]:
    options = {name: value for name, share, value in _OPTIONS if random.random() < share}
    if "soft_delete" in options and random.random() < 0.5:
        options["restore"] = True
    if "versioned" in options and random.random() < 0.3:
        options["history_restore"] = True
    if random.random() < 0.15:
        options["locale_mode"] = random.choice(("split", "resolve", "dynamic"))
    return options


def _draw_parts(random: Random, application: RandomApplication) -> None:
    """Entries of the catalogue, and features that are switched on."""
    server, models = application.server, application.models
    steps = server.pipeline

    def having(name: str) -> list[type[Model]]:
        return [one.cls for one in models if name in one.fields]

    one_of = [random.choice(models).cls]
    quiet = [one.cls for one in models if "events" not in one.options]
    parts: tuple[tuple[str, float, bool, Any], ...] = (
        (
            "tenancy",
            0.5,
            bool(having("org")),
            lambda: steps.db.register(db.tenancy("org"), models=having("org")),
        ),
        (
            "require_owner",
            0.3,
            bool(having("owner")),
            lambda: steps.db.register(auth.require_owner("owner"), models=having("owner")),
        ),
        (
            "redact_field",
            0.3,
            bool(having("amount")),
            lambda: steps.response.register(
                response.redact_field("amount", when=lambda ctx: not ctx.has_role("boss")),
                models=having("amount"),
            ),
        ),
        (
            "transform_field",
            0.25,
            bool(having("amount")),
            lambda: steps.response.register(
                response.transform_field("amount", lambda value: value), models=having("amount")
            ),
        ),
        ("enforce", 0.25, True, lambda: steps.db.register(auth.enforce(_is_open), models=one_of)),
        (
            "require_role",
            0.2,
            True,
            lambda: steps.auth.register(auth.require_role("boss", "member"), models=one_of),
        ),
        ("keys", 0.4, True, lambda: steps.deserialize.register(idempotency.keys(), at="after")),
        ("transaction", 0.2, True, lambda: steps.db.register(with_transaction())),
        ("audit_log", 0.3, True, lambda: steps.db.register(db.audit_log(), models=one_of, at="after")),
        ("cache_query", 0.2, True, lambda: steps.db.register(db.cache_query(), models=one_of)),
        ("webhooks", 0.4, True, lambda: server.webhooks.enable(["*"], allow_private=True, allow_http=True)),
        ("emit", 0.2, bool(quiet), lambda: server.events.emit(quiet[0])),
        (
            "service.emit",
            0.15,
            len(quiet) > 1,
            lambda: steps.db.register(service.emit(), models=[quiet[1]], at="after"),
        ),
        ("group", 0.3, True, lambda: server.events.subscribe("*", group="all")(_take)),
        ("batch", 0.4, True, server.enable_batch),
        ("realtime", 0.4, True, server.realtime.enable),
        ("work", 0.2, True, lambda: server.work.handler("report.v1")(_take)),
    )
    for name, share, is_possible, declare in parts:
        if is_possible and random.random() < share:
            declare()
            application.parts.append(name)


def _is_open(ctx: Context, record: Any) -> bool:
    title = record.get("title") if isinstance(record, dict) else record.title
    return bool(title != "closed")


def _take(what: Any) -> None:
    """Take an event or a run, and do nothing."""
