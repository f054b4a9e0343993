"""The REST routes of a durable part: those of its models, some of them replaced by routes of its own.

A `PartRoutes` says with which options the models are registered, and which routes replace the usual ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from maniflex._tables import PartialTable
from maniflex.background.commands import Command
from maniflex.background.jobs.status import StatusModel
from maniflex.background.outbox.model import OutboxMessage
from maniflex.background.runs.model import WorkflowEvent, WorkflowRun
from maniflex.background.schedules.model import Schedule, ScheduleFiring
from maniflex.background_api.own_rows import require_operator
from maniflex.errors import Forbidden, UnusableScope
from maniflex.model.base import Model
from maniflex.model.meta import ModelOptions
from maniflex.pipeline.chain import Default, Handler
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.routes import Endpoint, RouteBuilder, RouteDocs

_READING = PartialTable(
    {
        Operation.LIST: ("list", "List"),
        Operation.READ: ("get", "Get one"),
        Operation.HEAD: ("head", "Headers of"),
        Operation.OPTIONS: ("options", "Methods for"),
    },
    others="have routes with docs of their own",
)


def rename_route(one: str, many: str, endpoint: Endpoint) -> Endpoint:
    """The reading route, documented under the noun clients know instead of the name of the model class."""
    if endpoint.about is not None:  # it has a name of its own
        return endpoint
    noun = one if "{" in endpoint.path else many
    verb, summary = _READING[endpoint.operation]
    return replace(endpoint, about=RouteDocs(f"{verb}_{noun}", f"{summary} {noun.replace('_', ' ')}"))


def add_options(
    routes: RouteBuilder, endpoints: Sequence[Endpoint], models: Collection[type[Model]]
) -> list[Endpoint]:
    """The endpoints, and the answers to OPTIONS on the paths of these models.

    A command on one record, such as `POST …/{id}/cancel`, has no OPTIONS; an action has none either.
    """
    own = [e for e in endpoints if e.model is not None and e.model.cls in models and not _is_command(e)]
    return [*endpoints, *routes.options(own)]


def command_endpoint(
    routes: RouteBuilder, command: Command, defaults: dict[str, Default], respond: Default
) -> Endpoint:
    """The route of a command, below the record it is about; without words it is for the panel alone."""
    meta = routes.runtime.models[command.noun.model]
    return routes.endpoint(
        "POST",
        f"/{meta.table}/{{id}}/{command.path}",
        Operation.UPDATE,
        model=meta,
        defaults=defaults,
        respond=respond,
        about=command.route or RouteDocs(hidden=True),
    )


def _is_command(endpoint: Endpoint) -> bool:
    return endpoint.method == "POST" and "{id}/" in endpoint.path


def refuse_foreign_scopes(endpoints: Iterable[Endpoint], tables: Collection[type[Model]]) -> list[Endpoint]:
    """Have the routes of durable work answer 403 to a request whose scope names a field their table lacks.

    An application that binds every request to a tenant means its own models. Without that field a row
    cannot be inside the scope, so a caller in that scope may neither see nor change one.
    """
    return [
        replace(e, main=_within_scope(e.main)) if e.model is not None and e.model.cls in tables else e
        for e in endpoints
    ]


def _within_scope(main: Handler) -> Handler:
    async def run(ctx: Context) -> None:
        try:
            await main(ctx)
        except UnusableScope as error:
            ctx.logger.warning("403 on a table of durable work: %s", error)
            raise Forbidden() from None

    return run


class PartRoutes(Protocol):
    """The REST routes of one durable part."""

    def options(self) -> Mapping[type[Model], ModelOptions]:
        """Options its models are registered with, such as the middleware that guards them."""

    def replace_routes(self, routes: RouteBuilder, usual: list[Endpoint]) -> list[Endpoint]:
        """The endpoints of the server, given the `usual` ones it would have without this part."""


# The groups in which the API description shows the routes of durable work, by names people know.


GROUPS: dict[type[Model], str] = {
    WorkflowRun: "Runs",
    WorkflowEvent: "Runs",
    StatusModel: "Jobs",
    Schedule: "Schedules",
    ScheduleFiring: "Schedules",
    OutboxMessage: "Outbox",
}


def in_groups(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """The same endpoints, those of durable work with the tag of their group."""
    return [_in_group(endpoint) for endpoint in endpoints]


def _in_group(endpoint: Endpoint) -> Endpoint:
    group = None if endpoint.model is None else GROUPS.get(endpoint.model.cls)
    return endpoint if group is None else replace(endpoint, about=_with_tag(endpoint.about, group))


def _with_tag(about: RouteDocs | None, group: str) -> RouteDocs:
    return replace(about or RouteDocs(), tags=(group,))


# The guard of durable work that belongs to no caller: schedules and outbox are for operators alone.


class AdminsOnly:
    """Lets only operators pass: the admin role and no tenant, for these rows have none."""

    __name__ = "admins_only"

    def __init__(self, admin_role: Callable[[], str]) -> None:
        self._admin_role = admin_role  # asked for each request: it may be set after the routes are declared

    async def __call__(self, ctx: Context, next: Next) -> None:
        require_operator(ctx, self._admin_role())
        await next()
