"""Who may see an event: what REST would show this caller of the record, and nothing else.

The caller is one whom `auth.verify` still lets in. Its request is one of the application itself, with the
roles that whoever asks says, mostly none. The model's whole chains of LIST and READ run with it, up to a
database step that reads nothing: what they refuse is refused, and what they bind the request to binds its
events. Policies, redaction and transforms are asked each time. What cannot be told is withheld. Events
without a model are for those whom their declaration names.

Webhook endpoints ask here; whatever else shows events to clients has to ask here, too.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from maniflex._callables import is_async
from maniflex._json import decode
from maniflex._threads import on_thread
from maniflex.background.feed.api import Events
from maniflex.db.current import transaction
from maniflex.errors import Abort, CallbackFailed
from maniflex.events.event import CONTROL, Event
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.exchange import IN_PROCESS
from maniflex.pipeline.in_process import in_process_context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import ask
from maniflex.pipeline.routes import Endpoint, RouteBuilder, serves
from maniflex.pipeline.rules.transforms import change_records
from maniflex.query.query import Scope, adopt

ASK_AGAIN = timedelta(minutes=1)
_MOST_KEPT = 10_000
_DELETED = "deleted"


class _Reached(Exception):
    """The chain has come to its database step: the caller may ask for the model."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the chains of a model leave a caller: the request, and the conditions that bind it."""

    ctx: Context
    scope: Scope


class Audience:
    """Judges events for callers who are not there; with a `member_role`, for those who still have it."""

    def __init__(
        self,
        routes: RouteBuilder,
        events: Events,
        now: Callable[[], datetime],
        *,
        member_role: str | None = None,
    ) -> None:
        self._runtime = routes.runtime
        self._member_role = member_role
        self._events = events
        self._now = now
        self._logger = logging.getLogger("maniflex.events")
        metas = [store.meta for store in self._runtime.stores.values() if not store.meta.is_internal]
        self._models = {meta.name: meta for meta in metas}
        self._chains = {meta.name: _chains_of(routes, meta) for meta in metas}
        self._seen: dict[tuple[str, str, str], tuple[datetime, Seen | None]] = {}
        self._members: dict[tuple[str, str], tuple[datetime, bool]] = {}
        self._warned: set[str] = set()

    async def view(
        self, auth: AuthInfo, event: Event, digests: Mapping[str, str] | None = None
    ) -> Event | None:
        """The event as this caller may see it; None where it is withheld.

        `digests` are those of the hidden fields that stand beside the event.
        """
        try:
            return await self._view(auth, event, digests)
        except Exception as error:
            if event.type not in self._warned:  # once for each type, however many events there are
                self._warned.add(event.type)
                self._logger.warning("events of %s are withheld: who may see them cannot be told", event.type)
                self._logger.debug("the judgement failed", exc_info=error)
            return None

    async def _view(self, auth: AuthInfo, event: Event, digests: Mapping[str, str] | None) -> Event | None:
        if event.type.startswith(CONTROL) or not await self._is_member(auth):
            return None
        if event.model is None or event.source not in self._events.own_sources:
            return event if await self._is_addressed(auth, event) else None
        meta = self._models.get(event.model)
        if meta is None or not event.record_id:
            return None
        caller_view = await self._ask_chains(auth, meta)
        if caller_view is None or not await self._allows(caller_view, meta, event, digests):
            return None
        return await self._as_shown(caller_view.ctx, meta, event)

    # -- callers

    async def _is_member(self, auth: AuthInfo) -> bool:
        """Whether the application still knows the caller, asked anew each minute."""
        if not (auth.user_id and self._runtime.caller_checks):
            return True
        key, now = (auth.user_id, auth.tenant_id), self._now()
        last = self._members.get(key)
        if last is not None and abs(now - last[0]) < ASK_AGAIN:
            return last[1]
        is_member = await self._ask_application(auth)
        while len(self._members) >= _MOST_KEPT:
            self._members.pop(next(iter(self._members)))
        self._members[key] = now, is_member
        return is_member

    async def _ask_application(self, auth: AuthInfo) -> bool:
        """Ask `auth.verify`; of the roles that it leaves, one is to be `member_role`."""
        ctx = in_process_context(Context, self._runtime, Operation.LIST, method="GET", path="/")
        info = replace(auth, roles=[] if self._member_role is None else [self._member_role])
        ctx.scope[IN_PROCESS] = True
        ctx.auth, ctx.authenticated, ctx.csrf_exempt = info, True, True
        for check in self._runtime.caller_checks:
            try:
                if await ask(ctx, check, ctx, info.claims, info) is False:
                    return False
            except Abort:
                return False
            except CallbackFailed as error:
                if isinstance(error.__cause__, ValueError):
                    return False
                raise
        is_same = (info.user_id, info.tenant_id) == (auth.user_id, auth.tenant_id)
        return is_same and (self._member_role is None or self._member_role in info.roles)

    # -- events of no model

    async def _is_addressed(self, auth: AuthInfo, event: Event) -> bool:
        event_type = self._events.find_type(event)
        audience: Any = "nobody" if event_type is None else event_type.audience
        is_same_tenant = (auth.tenant_id or None) == (event.tenant_id or None)
        match audience:
            case "everyone":
                return True
            case "tenant":
                return is_same_tenant
            case "actor":
                return is_same_tenant and bool(auth.user_id) and event.actor_id == auth.user_id
            case "nobody":
                return False
        answer = (
            audience(auth, event) if is_async(audience) else await on_thread(lambda: audience(auth, event))
        )
        return (await answer if inspect.isawaitable(answer) else answer) is True

    # -- events of a model

    async def _ask_chains(self, auth: AuthInfo, meta: ModelMeta) -> Seen | None:
        """What the chains of the model leave the caller, asked anew each minute."""
        key, now = (auth.user_id, auth.tenant_id, meta.name), self._now()
        last = self._seen.get(key)
        if last is not None and abs(now - last[0]) < ASK_AGAIN:
            return last[1]
        caller_view = await self._run_chains(auth, meta)
        while len(self._seen) >= _MOST_KEPT:
            self._seen.pop(next(iter(self._seen)))
        self._seen[key] = now, caller_view
        return caller_view

    async def _run_chains(self, auth: AuthInfo, meta: ModelMeta) -> Seen | None:
        caller_view: Seen | None = None
        for endpoint in self._chains[meta.name]:
            ctx = self._context(auth, meta, endpoint)
            try:
                await endpoint.main(ctx)
            except _Reached:
                pass
            except Exception as refusal:
                self._logger.debug("%s is closed to an endpoint", meta.name, exc_info=refusal)
            if not ctx.state.get(_PASSED):  # it was refused, or answered before
                return None
            scope = adopt(() if caller_view is None else caller_view.scope, ctx.current_query())
            caller_view = Seen(ctx if caller_view is None else caller_view.ctx, scope)
        return caller_view

    def _context(self, auth: AuthInfo, meta: ModelMeta, endpoint: Endpoint) -> Context:
        ctx = in_process_context(
            Context, self._runtime, endpoint.operation, method="GET", path=f"/{meta.table}"
        )
        ctx.scope[IN_PROCESS] = True
        ctx.auth, ctx.authenticated, ctx.csrf_exempt = auth, True, True
        ctx.model = meta
        return ctx

    async def _allows(
        self, caller_view: Seen, meta: ModelMeta, event: Event, digests: Mapping[str, str] | None
    ) -> bool:
        """Whether the caller may see the record, as the event tells that it was and as it is now."""
        judge = self._runtime.rules[meta.cls].judge_of_included
        if not caller_view.scope and not judge:
            return True
        verdicts = [self._events.digests.tells(rule, meta, digests) for rule in caller_view.scope]
        if False in verdicts:
            return False
        open_rules = tuple(
            [rule for rule, holds in zip(caller_view.scope, verdicts, strict=True) if holds is None]
        )
        store = self._runtime.stores[meta.cls]
        async with transaction(store.adapter):  # which asks the primary
            now = await judge.find_kept(event.record_id or "")
            if now is None and event.operation != _DELETED:
                return False
            if now is not None and not await judge.allows_row(caller_view.ctx, now, caller_view.scope):
                return False
            state: Mapping[str, Any] = event.data if isinstance(event.data, dict) else {}
            return await judge.allows_states(caller_view.ctx, [state], now, open_rules)

    async def _as_shown(self, ctx: Context, meta: ModelMeta, event: Event) -> Event | None:
        """The event with the fields that the caller sees, in the form that answers show them."""
        rules = self._runtime.rules[meta.cls]
        hidden_names = await rules.unshown_fields(ctx)
        transforms = [one for one in rules.transforms if one.covers_included]
        if (hidden_names or transforms) and self._events.makes_own_data(meta.cls):
            return None  # nobody can tell which fields a function of the application has put where
        if not isinstance(event.data, dict):
            return event.with_data(event.data, _without(event.changed, hidden_names))
        data = {name: value for name, value in event.data.items() if name not in hidden_names}
        await change_records(ctx, transforms, [data])
        answer_data = decode(self._runtime.encode(data))
        return event.with_data(answer_data, _without(event.changed, hidden_names))


_PASSED = "maniflex.audience"


def _stop_here(ctx: Context) -> Awaitable[None] | None:
    ctx.state[_PASSED] = True
    raise _Reached


def _chains_of(routes: RouteBuilder, meta: ModelMeta) -> list[Endpoint]:
    """The chains of LIST and READ of a model; none where clients can do neither."""
    operations = [(Operation.LIST, False), (Operation.READ, True)]
    if not any(serves(meta, operation, item=item) for operation, item in operations):
        return []
    return [
        routes.endpoint(
            "GET",
            f"/{meta.table}",
            operation,
            model=meta,
            item=item,
            defaults={"db": _stop_here},
        )
        for operation, item in operations
    ]


def _without(names: Collection[str] | None, hidden_names: Collection[str]) -> tuple[str, ...] | None:
    return None if names is None else tuple([name for name in names if name not in hidden_names])
