"""From the declaration of a panel to its routes: every mistake named, every default filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from maniflex._names import did_you_mean
from maniflex.admin.actions import relation_problems
from maniflex.admin.declare import Admin, ModelAdmin, ModelName, Operations, name_of, time_zones
from maniflex.admin.inlines import inline_problems
from maniflex.admin.operations.parts import DurableParts
from maniflex.admin.panel import Panel, PanelParts
from maniflex.admin.site import Computeds, ModelSite, Sites, site_problems
from maniflex.admin.texts import TEXTS
from maniflex.admin.transfers.runner import TransferRunner
from maniflex.background.runs.api import Work
from maniflex.config import Config
from maniflex.features.actions import Action
from maniflex.middleware.workflow import Machine
from maniflex.model.history_row import is_history
from maniflex.model.meta import ModelMeta
from maniflex.model.registry import unknown_model
from maniflex.pipeline.registration import takes
from maniflex.pipeline.routes import RouteBuilder

_PATH = re.compile(r"(/[A-Za-z0-9_.~-]+)+")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_ON = ("record", "records", "model")
_RESERVED = ("static", "-")


def panel_problems(
    admin: Admin, config: Config, models: Sequence[ModelMeta] | None, api_actions: Sequence[Action] = ()
) -> Iterator[str]:
    """The mistakes of a declaration, one sentence each; those about models as far as these can be read."""
    yield from _path_problems(admin, config)
    yield from _entry_problems(admin, config)
    yield from _option_problems(admin)
    if models is not None:
        yield from _model_problems(admin, models)
        yield from _form_problems(admin, models, api_actions)


def _path_problems(admin: Admin, config: Config) -> Iterator[str]:
    path, prefix = admin.path, config.path_prefix
    if not _PATH.fullmatch(path):
        yield f"admin: path {path!r} is written like /admin"
        return
    if not prefix:
        yield "admin: the API has no path_prefix, so the panel has no place beside it"
    others = {"path_prefix": prefix, "static_prefix": config.static_prefix, "the API description": "/docs"}
    probes = {f"the probe {probe}": probe for probe in ("/health", "/live", "/ready", "/metrics")}
    for what, place in {**others, **probes}.items():
        if place and (f"{path}/".startswith(f"{place}/") or f"{place}/".startswith(f"{path}/")):
            yield f"admin: path {path!r} would share its paths with {what} {place!r}"


def _entry_problems(admin: Admin, config: Config) -> Iterator[str]:
    auth: Any = admin.auth
    if admin.allow_unauthenticated:
        if config.host not in _LOOPBACK:
            yield f"admin: allow_unauthenticated works only on loopback; the server listens on {config.host}"
        if config.production:
            yield "admin: allow_unauthenticated does not go with production"
        return
    if isinstance(auth, str):
        if auth not in ("superuser", "pipeline"):
            yield f'admin: auth={auth!r} is none of "superuser", "pipeline", a function or an AdminAuth'
    elif hasattr(auth, "login"):
        if not takes(auth.login, 2):
            yield "admin: login of the AdminAuth is called with (ctx, form), which it does not take"
    elif not callable(auth) or not takes(auth, 3):
        yield "admin: a login is called with (ctx, username, password), which it does not take"
    if auth == "superuser" and find_spec("argon2") is None:
        yield 'admin: superusers need argon2-cffi: pip install "maniflex[admin]"'


def _option_problems(admin: Admin) -> Iterator[str]:
    for option in ("templates", "assets"):
        place = getattr(admin, option)
        if place is not None and not Path(place).is_dir():
            yield f"admin: {option}: there is no directory {str(place)!r}"
    if admin.time_zone not in time_zones():
        hint = did_you_mean(admin.time_zone, time_zones())
        yield f"admin: time_zone: there is no zone {admin.time_zone!r}{hint}"
    for key in admin.texts:
        if key not in TEXTS:
            yield f"admin: texts: there is no text {key!r}{did_you_mean(key, TEXTS)}"
    for option in ("session_lifetime", "idle_timeout"):
        if getattr(admin, option).total_seconds() < 60:
            yield f"admin: {option} is at least a minute"
    yield from operations_problems(admin.operations)
    for page in admin.pages:
        if not _PATH.fullmatch(page.path) or page.path.startswith("/-"):
            yield f"admin: page: the path {page.path!r} is written like /sales"
        if not _has_template(admin, page.template):
            place = (
                "templates= names no directory" if admin.templates is None else f"not in {admin.templates}"
            )
            yield f"admin: page {page.path}: there is no template {page.template!r} ({place})"
    for action in admin.actions:
        if action.on not in _ON:
            yield f"admin: action {action.name}: on={action.on!r} is none of {', '.join(_ON)}"


def _has_template(admin: Admin, name: str) -> bool:
    places = [
        files("maniflex.admin") / "templates",
        *([] if admin.templates is None else [Path(admin.templates)]),
    ]
    return any((place / name).is_file() for place in places)


def operations_problems(operations: Any) -> Iterator[str]:
    """The mistakes in `operations=`."""
    if isinstance(operations, bool):
        return
    if not isinstance(operations, Operations):
        yield f"admin: operations={operations!r} is none of True, False and Operations(...)"
        return
    for option in ("role", "view_role"):
        role = getattr(operations, option)
        if not (isinstance(role, str) and role) and not (option == "view_role" and role is None):
            yield f"admin: Operations: {option}={role!r} is no role"
    if isinstance(operations.redact, str) or not all(map(str, operations.redact)):
        yield "admin: Operations: redact lists the names of keys"


def _model_problems(admin: Admin, models: Sequence[ModelMeta]) -> Iterator[str]:
    by_name = {meta.name: meta for meta in models}
    shown_metas = {meta.name for meta in shown_models(admin, models)}
    mentions: list[tuple[str, ModelName]] = [("models", m) for m in admin.models or ()]
    mentions += [("exclude", m) for m in admin.exclude]
    mentions += [("ModelAdmin", one.model) for one in admin.model_admins]
    mentions += [(f"action {one.name}", one.model) for one in admin.actions]
    mentions += [("tenants", admin.tenants)] if admin.tenants is not None else []
    mentions += [("accounts", admin.accounts)] if admin.accounts is not None else []
    for where, model in mentions:
        if problem := unknown_model(model, by_name):
            yield f"admin: {where}: {problem}"
    for one in admin.model_admins:
        meta = by_name.get(one.model_name)
        if meta is not None:
            yield from (f"admin: {problem}" for problem in site_problems(one, meta))
            yield from (f"admin: {problem}" for problem in inline_problems(one, meta, by_name))
    names = [one.model_name for one in admin.model_admins]
    for name in {name for name in names if names.count(name) > 1}:
        yield f"admin: there are two ModelAdmin for {name}"
    for name in shown_metas:
        if by_name[name].table in _RESERVED:
            yield f"admin: {name}: a table called {by_name[name].table!r} has no place in the panel"
    pages = {page.path.strip("/") for page in admin.pages}
    for name in shown_metas:
        if by_name[name].table in pages:
            yield f"admin: page: the path '/{by_name[name].table}' is that of the model {name}"


def _form_problems(admin: Admin, models: Sequence[ModelMeta], api_actions: Sequence[Action]) -> Iterator[str]:
    """Relations in the types of actions that lead nowhere."""
    by_name = {meta.name: meta for meta in models}
    forms = [(f"admin: action {one.name}: form", one.form) for one in admin.actions]
    forms += [
        (f"action {one.method} {one.path}: request", one.request)
        for one in api_actions
        if not one.type_problems()
    ]
    for where, form in forms:
        if form is not None:
            yield from (f"{where}: {problem}" for problem in relation_problems(form, by_name))


def shown_models(admin: Admin, models: Sequence[ModelMeta]) -> list[ModelMeta]:
    """The models in the navigation."""
    chosen_names = None if admin.models is None else {name_of(m) for m in admin.models}
    excluded_names = {name_of(m) for m in admin.exclude}
    private_names = {one.model_name for one in admin.model_admins if one.private}
    return [
        meta
        for meta in models
        if (not meta.options.headless or meta.name in private_names)
        and not meta.is_internal
        and not is_history(meta)
        and (chosen_names is None or meta.name in chosen_names)
        and meta.name not in excluded_names
    ]


def build_panel(
    admin: Admin,
    routes: RouteBuilder,
    models: Sequence[ModelMeta],
    *,
    title: str,
    own_authenticators: Sequence[str],
    api_actions: Sequence[Action],
    machines: Sequence[Machine],
    work: Work,
    durable: DurableParts | None = None,
) -> Panel:
    """The panel of a server that is being sealed."""
    config = routes.runtime.config
    by_name: Mapping[str, ModelMeta] = {meta.name: meta for meta in models}
    admins = {one.model_name: one for one in admin.model_admins}
    computeds = Computeds(routes.computed)

    def site_of(meta: ModelMeta) -> ModelSite:
        return ModelSite(
            meta=meta,
            admin=admins.get(meta.name) or ModelAdmin(meta.name),
            api_path=f"{config.path_prefix}/{meta.table}",
            computed=computeds.of(meta),
            models=by_name,
            actions=tuple(one for one in admin.actions if one.model_name == meta.name),
            read_only=admin.read_only,
            state_rules={
                rules.field.name: rules
                for rules in (machine.states_of(meta) for machine in machines if machine.is_on(meta))
            },
        )

    shown_metas = shown_models(admin, models)
    others = [
        m
        for m in models
        if m not in shown_metas and not (m.options.headless or m.is_internal or is_history(m))
    ]
    sites = Sites([site_of(meta) for meta in shown_metas], [site_of(meta) for meta in others])
    parts = PanelParts(
        admin,
        routes,
        sites,
        title=admin.title or config.service_name or title or "Admin",
        api_actions=api_actions,
        own_authenticators=own_authenticators,
        work=work,
        durable=durable,
    )
    admin.transfer_handler = TransferRunner(parts).handle
    return Panel(parts, routes)
