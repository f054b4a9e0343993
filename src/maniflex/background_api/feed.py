"""The feed over REST, for operators: its events, and the groups that take them.

Events are written by code alone, in the transaction of what they tell about; here they are read. A group is
paused, goes on, or gets what is kept once more; its id is its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from maniflex.background.commands import GROUP, REPLAY, Command, Replayed, commands_of
from maniflex.background.feed.api import Events
from maniflex.background.feed.model import EventGroup, LoggedEvent
from maniflex.background_api.part_routes import AdminsOnly, command_endpoint, rename_route
from maniflex.background_api.runs import check_instant_text, check_zone
from maniflex.errors import NotFound, ValidationFailed
from maniflex.model.base import Model
from maniflex.model.meta import ModelOptions
from maniflex.pipeline.chain import Default
from maniflex.pipeline.context import Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response
from maniflex.pipeline.routes import Endpoint, RouteBuilder
from maniflex.pipeline.steps.response import Respond

_NOUNS: dict[type[Model], tuple[str, str]] = {
    LoggedEvent: ("logged_event", "logged_events"),
    EventGroup: ("event_group", "event_groups"),
}
LONGEST_CURSOR = 60

Instant = Annotated[
    datetime | None, Field(strict=False), BeforeValidator(check_instant_text), AfterValidator(check_zone)
]


class Replay(BaseModel):
    """What a client says of the events that a group gets again."""

    model_config = ConfigDict(extra="forbid", strict=True)

    after: str | None = Field(default=None, max_length=LONGEST_CURSOR)
    since: Instant = None
    until: str | None = Field(default=None, max_length=LONGEST_CURSOR)


class FeedRoutes:
    """The routes of the feed."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def options(self) -> Mapping[type[Model], ModelOptions]:
        guard = AdminsOnly(lambda: self._events.admin_role)
        options = ModelOptions(middleware={"auth": guard}, headless=not self._events.routes)
        return {LoggedEvent: options, EventGroup: options}

    def replace_routes(self, routes: RouteBuilder, usual: list[Endpoint]) -> list[Endpoint]:
        if EventGroup not in routes.runtime.stores or not self._events.routes:
            return usual
        tables = {routes.runtime.stores[model].meta for model in _NOUNS}
        others = [e for e in usual if e.model not in tables]
        reading = [e for e in usual if e.model in tables and e.operation in Operation.READS]
        own = [_name_route(e) for e in (*reading, *routes.options(reading))]
        return [*others, *own, *self.private_endpoints(routes).values()]

    def private_endpoints(self, routes: RouteBuilder) -> dict[str, Endpoint]:
        """The commands, which operators have in the panel on no path."""
        serializer = routes.runtime.serializers[EventGroup]
        respond = Respond(serializer, routes.computed.get(EventGroup, ()), etags=False)
        steps: dict[str, tuple[dict[str, Default], Default]] = {
            one.name: ({"db": self._change(one)}, respond.answer_record) for one in commands_of(GROUP)
        }
        steps[REPLAY.name] = ({"deserialize": _read_replay, "db": self._replay}, _answer_accepted)
        return {
            one.key: command_endpoint(routes, one, EventGroup, *steps[one.name]) for one in commands_of(GROUP)
        }

    def _change(self, command: Command) -> Default:
        async def change(ctx: Context) -> None:
            store = ctx.runtime.stores[EventGroup]
            async with ctx.transaction():
                await store.read(ctx.resource_id, scope=ctx.forced)
                if not await command.call(self._events, ctx.resource_id):
                    raise NotFound()
                ctx.row = await store.read(ctx.resource_id)

        return change

    async def _replay(self, ctx: Context) -> None:
        await ctx.runtime.stores[EventGroup].read(ctx.resource_id, scope=ctx.forced)
        body: Replay = ctx.state.replay
        count = await REPLAY.call(self._events, ctx.resource_id, body.after, body.since, body.until)
        ctx.result = Replayed(count)


async def _read_replay(ctx: Context) -> None:
    body = await ctx.bind_json(Replay)
    if (body.after is None) == (body.since is None):
        message = "say either after, a cursor, or since, a moment"
        raise ValidationFailed(details=[{"field": "after", "message": message, "code": "invalid"}])
    ctx.state.replay = body


def _answer_accepted(ctx: Context) -> None:
    if ctx.response is None:
        ctx.response = Response(202, ctx.result)


def _name_route(endpoint: Endpoint) -> Endpoint:
    nouns = None if endpoint.model is None else _NOUNS.get(endpoint.model.cls)
    return endpoint if nouns is None else rename_route(nouns[0], nouns[1], endpoint)
