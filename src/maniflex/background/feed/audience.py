"""Who may see an event: what REST would show this caller of the record, and nothing else.

The model's whole chain runs with a request of the caller, as a list whose database step reads nothing
(`Operation.SUBSCRIBE`, which rules for lists and rules for reads cover): what it refuses is refused, and
what it binds the request to binds its events. `admit` gives what it leaves of the model. Then each event is
judged: `tell` says what the event itself tells, `allows` asks the database and the policies, `show` gives
the form. What cannot be told is withheld. Events without a model are for those whom their declaration names.

Webhook endpoints ask here (`view`), for an identity whom `auth.verify` still lets in, mostly without roles,
and so do streams.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from maniflex._callables import is_async
from maniflex._caller import asking
from maniflex._json import decode
from maniflex._threads import on_thread
from maniflex.background.feed.api import Events
from maniflex.background.feed.store import FeedEvent
from maniflex.db.current import detached_context, transaction
from maniflex.db.port import Row
from maniflex.errors import Abort, CallbackFailed, RequestError
from maniflex.events.event import CONTROL, Event
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.exchange import IN_PROCESS
from maniflex.pipeline.in_process import in_process_context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import ask
from maniflex.pipeline.routes import Endpoint, RouteBuilder, serves
from maniflex.pipeline.rules.redactions import Names
from maniflex.pipeline.rules.transforms import change_records
from maniflex.pipeline.runtime import is_outage
from maniflex.query.operators import Op
from maniflex.query.query import Forced, Narrowed, Scope, adopt, holds, leaves
from maniflex.sql.history_layouts import typed_value

ASK_AGAIN = timedelta(minutes=1)
_MOST_KEPT = 10_000
_DELETED = "deleted"


class _Reached(Exception):
    """The chain has come to its database step: the caller may ask for the model."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the chain of a model leaves a caller: the request, the conditions that bind it, hidden fields."""

    ctx: Context
    meta: ModelMeta
    scope: Scope
    hidden: Names

    @property
    def key(self) -> Any:
        """Equal for callers who see all events of the model alike; None where that is asked of each."""
        rules = self.ctx.runtime.rules[self.meta.cls]
        if rules.judge(Operation.SUBSCRIBE, item=False) or rules.changes(Operation.SUBSCRIBE):
            return None
        return self.meta.name, self.scope, self.hidden


class Facts:
    """What was found out about one event, for all who ask about it."""

    __slots__ = ("_findings",)

    def __init__(self) -> None:
        self._findings: dict[Any, asyncio.Future[Any]] = {}

    async def find(self, key: Any, find: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """What `find` gives, which is asked once for each key."""
        finding = self._findings.get(key)
        if finding is None:
            # In a task of its own: whoever happens to be first may leave.
            finding = asyncio.get_running_loop().create_task(find(), context=detached_context())
            self._findings[key] = finding
        try:
            return await asyncio.shield(finding)
        except BaseException:
            if finding.done() and self._findings.get(key) is finding:
                del self._findings[key]  # another may ask again
            raise


class Audience:
    """Judges events for callers; of `view` with a `member_role`, for those who still have it."""

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
        self._chains = {meta.name: subscribe_endpoint(routes, meta) for meta in metas}
        self._seen: dict[tuple[str, str, str], tuple[datetime, Seen | None]] = {}
        self._members: dict[tuple[str, str], tuple[datetime, bool]] = {}
        self._warned: set[str] = set()
        self.on_withheld: Callable[[], None] = lambda: None  # told of each event of which it cannot be told

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
            return event if await self.is_addressed(auth, event) else None
        meta = self._models.get(event.model)
        if meta is None or not event.record_id:
            return None
        caller_view = await self._ask_chain(auth, meta)
        if caller_view is None or not await self._allows_now(caller_view, event, digests):
            return None
        return await self.show(caller_view, event)

    @property
    def models(self) -> Mapping[str, ModelMeta]:
        """The models whose events it judges, by name."""
        return self._models

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

    def tell_addressed(self, auth: AuthInfo, event: Event) -> bool | None:
        """Whether an event without a model is for the caller; None where a function has to be asked."""
        event_type = self._events.find_type(event)
        if event_type is None or event_type.audience in ("nobody", "everyone"):
            return event_type is not None and event_type.audience == "everyone"
        if callable(event_type.audience):
            return None
        is_same_tenant = (auth.tenant_id or None) == (event.tenant_id or None)
        is_own = bool(auth.user_id) and event.actor_id == auth.user_id
        return is_same_tenant and (is_own or event_type.audience == "tenant")

    async def is_addressed(self, auth: AuthInfo, event: Event) -> bool:
        """Whether an event without a model is for the caller."""
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

    async def _ask_chain(self, auth: AuthInfo, meta: ModelMeta) -> Seen | None:
        """What the chain of the model leaves an identity, asked anew each minute."""
        key, now = (auth.user_id, auth.tenant_id, meta.name), self._now()
        last = self._seen.get(key)
        if last is not None and abs(now - last[0]) < ASK_AGAIN:
            return last[1]
        ctx = in_process_context(
            Context, self._runtime, Operation.SUBSCRIBE, method="GET", path=f"/{meta.table}"
        )
        ctx.scope[IN_PROCESS] = True
        ctx.auth, ctx.authenticated, ctx.csrf_exempt = auth, True, True
        caller_view = await self.admit(ctx, meta)
        while len(self._seen) >= _MOST_KEPT:
            self._seen.pop(next(iter(self._seen)))
        self._seen[key] = now, caller_view
        return caller_view

    async def admit(self, ctx: Context, meta: ModelMeta) -> Seen | None:
        """What the chain of a model leaves this request of a caller; None where it refuses."""
        endpoint = self._chains[meta.name]
        if endpoint is None:
            return None
        ctx.model = meta
        before = asking.set(ctx)
        try:
            await endpoint.main(ctx)
        except _Reached:
            pass
        except RequestError as refusal:
            if is_outage(refusal):
                raise
            self._logger.debug("%s is closed to a caller: %s", meta.name, refusal)
        except Exception as error:
            self._warn_once(meta.name, "its rules cannot be asked", error)
        finally:
            asking.reset(before)
        if not ctx.state.get(_PASSED):  # it was refused, or answered before
            return None
        rules = self._runtime.rules[meta.cls]
        hidden_names = await rules.unshown_fields(ctx)
        return Seen(ctx, meta, adopt((), ctx.current_query()), hidden_names)

    def _warn_once(self, about: str, reason: str, error: BaseException) -> None:
        self.on_withheld()
        if about not in self._warned:  # once, however many events there are
            self._warned.add(about)
            self._logger.warning("events of %s are withheld: %s", about, reason, exc_info=error)

    def tell(self, caller_view: Seen, one: FeedEvent) -> bool | None:
        """Whether the caller may see the event, if the event tells; None where somebody has to be asked."""
        if caller_view.scope:
            verdicts = [self._tells(rule, caller_view.meta, one) for rule in caller_view.scope]
            if False in verdicts:
                return False
            if None in verdicts:
                return None
        judge = self._runtime.rules[caller_view.meta.cls].judge(Operation.SUBSCRIBE, item=False)
        return None if judge else True

    def _tells(self, rule: Forced | Narrowed, meta: ModelMeta, one: FeedEvent) -> bool | None:
        """Whether a condition holds for the record of an event: by its data, else by its digests."""
        data = one.event.data if isinstance(one.event.data, dict) else {}
        verdict = _tells(rule, meta, data)
        return self._events.digests.tells(rule, meta, one.scope) if verdict is None else verdict

    async def allows(self, caller_view: Seen, one: FeedEvent, facts: Facts) -> bool:
        """Whether the caller may see the event: its record as it was, and policies the row as it is."""
        try:
            return await self._asks(caller_view, one, facts)
        except RequestError as error:
            if is_outage(error):
                raise
            self._warn_once(one.event.type, "who may see them cannot be told", error)
        except Exception as error:
            self._warn_once(one.event.type, "who may see them cannot be told", error)
        return False

    async def _asks(self, caller_view: Seen, one: FeedEvent, facts: Facts) -> bool:
        event = one.event
        meta, store = caller_view.meta, self._runtime.stores[caller_view.meta.cls]
        judge = self._runtime.rules[meta.cls].judge(Operation.SUBSCRIBE, item=False)
        data = event.data if isinstance(event.data, dict) else {}
        verdicts = [self._tells(rule, meta, one) for rule in caller_view.scope]
        if False in verdicts:
            return False
        untold = tuple(
            rule for rule, verdict in zip(caller_view.scope, verdicts, strict=True) if verdict is None
        )
        record_id = event.record_id or ""

        async def find_row(scope: Scope = ()) -> Row | None:
            async with transaction(store.adapter):  # which asks the primary
                return await judge.find_kept(record_id, scope)

        if untold and await facts.find((meta.name, untold), lambda: find_row(untold)) is None:
            return False
        if not judge:
            return True
        row = await facts.find(meta.name, find_row)
        if row is not None:
            return await judge.allows_row(caller_view.ctx, row)
        is_gone = event.operation == _DELETED
        return is_gone and await judge.allows_states(caller_view.ctx, [data], None)

    async def _allows_now(self, caller_view: Seen, event: Event, digests: Mapping[str, str] | None) -> bool:
        """Whether the caller may see the record, as the event tells that it was and as it is now."""
        judge = self._runtime.rules[caller_view.meta.cls].judge(Operation.SUBSCRIBE, item=False)
        if not caller_view.scope and not judge:
            return True
        meta = caller_view.meta
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

    async def show(self, caller_view: Seen, event: Event) -> Event | None:
        """The event with the fields that the caller sees, in the form that answers show them."""
        transforms = self._runtime.rules[caller_view.meta.cls].changes(Operation.SUBSCRIBE)
        if not transforms or not isinstance(event.data, dict):
            return self.show_at_once(caller_view, event, is_changed=bool(transforms))
        if self._events.makes_own_data(caller_view.meta.cls):
            return None
        data = {name: value for name, value in event.data.items() if name not in caller_view.hidden}
        await change_records(caller_view.ctx, transforms, [data])
        return event.with_data(
            decode(self._runtime.encode(data)), _without(event.changed, caller_view.hidden)
        )

    def show_at_once(self, caller_view: Seen, event: Event, *, is_changed: bool = False) -> Event | None:
        """The event with the fields that the caller sees, where no field is shown in another form."""
        hidden_names = caller_view.hidden
        if (hidden_names or is_changed) and self._events.makes_own_data(caller_view.meta.cls):
            return None  # nobody can tell which fields a function of the application has put where
        if not hidden_names:
            return event
        data = event.data
        if isinstance(data, dict):
            data = {name: value for name, value in data.items() if name not in hidden_names}
        return event.with_data(data, _without(event.changed, hidden_names))


_PASSED = "maniflex.audience"


def _stop_here(ctx: Context) -> Awaitable[None] | None:
    ctx.state[_PASSED] = True
    raise _Reached


def subscribe_endpoint(routes: RouteBuilder, meta: ModelMeta) -> Endpoint | None:
    """The chain of those who ask for the events of a model; None where clients can read nothing of it."""
    is_read = serves(meta, Operation.LIST, item=False) or serves(meta, Operation.READ, item=True)
    if meta.options.headless or not is_read:
        return None
    return routes.endpoint(
        "GET", f"/{meta.table}", Operation.SUBSCRIBE, model=meta, item=False, defaults={"db": _stop_here}
    )


_TOLD_BY_VALUES = (Op.EQ, Op.IN)  # what every database and Python compare alike


def _tells(rule: Forced | Narrowed, meta: ModelMeta, data: Mapping[str, Any]) -> bool | None:
    """Whether a condition holds for the record of an event; None where its data do not tell."""
    condition = rule.on(meta)
    if condition is None:  # it binds other models
        return True
    verdict: bool | None = False
    for item in leaves((condition,)):
        if item.path or item.op not in _TOLD_BY_VALUES or item.field.api not in data:
            verdict = None
            continue
        try:
            value = typed_value(item.field, data[item.field.api])
        except ValueError:
            verdict = None
            continue
        if holds(item.op, value, item.value):
            return True
    return verdict


def _without(names: Collection[str] | None, hidden_names: Collection[str]) -> tuple[str, ...] | None:
    return None if names is None else tuple([name for name in names if name not in hidden_names])
