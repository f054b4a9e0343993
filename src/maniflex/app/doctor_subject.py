"""A sealed server as the doctor looks at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maniflex.app.assembly import Assembly
from maniflex.app.durable import Durable
from maniflex.app.migrating import SchemaTables
from maniflex.doctor.check import Ignore
from maniflex.doctor.subject import GuardedRoute, Subject
from maniflex.features.actions import Action
from maniflex.model.base import Model
from maniflex.pipeline.routes import Mount


def subject_of(
    assembly: Assembly,
    durable: Durable,
    tables: SchemaTables,
    *,
    actions: Sequence[Action],
    layers: Sequence[Any],
    computed: Mapping[type[Model], Sequence[Any]],
    ignores: Sequence[Ignore],
) -> Subject:
    """The application, as values."""
    runtime = assembly.runtime
    desk = durable.files.declared_desk

    return Subject(
        config=runtime.config,
        clock=runtime.clock,
        models=tuple(store.meta for store in runtime.stores.values()),
        stores=runtime.stores,
        adapters=assembly.adapters,
        routes=tuple(_routes(assembly)),
        placement=assembly.placement,
        layers=layers,
        actions=actions,
        computed=computed,
        work=durable.work,
        outbox=durable.outbox,
        schedules=durable.schedules,
        storage=None if desk is None else desk.storage,
        in_process=assembly.in_process,
        runtime=runtime,
        migration_targets=tables.targets,
        ignores=tuple(ignores),
        missing_extras=assembly.missing_extras,
    )


def _routes(assembly: Assembly) -> list[GuardedRoute]:
    prefix = assembly.runtime.config.path_prefix
    routes = []
    for endpoint in assembly.endpoints:
        guards = assembly.guards.of(endpoint)
        path = prefix + endpoint.path if endpoint.mount is Mount.API else endpoint.path
        routes.append(GuardedRoute(path, endpoint, guards.is_decided, guards.authenticators))
    return routes
