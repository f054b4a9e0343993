"""Which rows a request may see: the caller's own, those of an admin's tenant, or all for operators.

The condition is forced on the request, so it holds for lists, counts, single records, aggregates,
exports and writes alike. A row is the caller's by actor and by tenant; a caller without a tenant sees
rows without one. Hidden types, the texts of exceptions, stack traces and the names of workers are shown to
operators alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from maniflex.background.runs.api import Work
from maniflex.background_api.caller_keys import KEYS, client_keys, mark, match_client_keys, widen_key_filter
from maniflex.background_api.failures import (
    drop_added_fields,
    hide_texts_of_event,
    hide_texts_of_run,
    select_deciding_fields,
)
from maniflex.background_api.reach import CallerReach, is_operator, reach_of, require_identity
from maniflex.errors import InvalidQuery
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.pipeline.steps.browse import PAGE
from maniflex.query.operators import Op
from maniflex.query.query import AnyOf, Compare, Filter

_WORKER = "leased_by"  # names a machine and a process of the application


def bind_to_caller(bind: Callable[..., None], auth: AuthInfo, reach: CallerReach, path: str = "") -> None:
    """Leave the caller's own rows or, with the reach of a tenant, all rows of that tenant."""
    if reach is CallerReach.OWN:
        bind(f"{path}actor_id", auth.user_id)
    if auth.tenant_id:
        bind(f"{path}tenant_id", auth.tenant_id)
    else:
        bind(f"{path}tenant_id", op="is_null")


class Guard:
    """Binds requests for runs, or with `path` for records that belong to one."""

    __name__ = "own_runs"

    def __init__(self, work: Work, path: str = "") -> None:
        self._work = work
        self._path = path

    async def __call__(self, ctx: Context, next: Next) -> None:
        if ctx.operation is not Operation.OPTIONS:  # which shows no run
            reach = reach_of(ctx, self._work.access.admin_role)
            if reach is not CallerReach.ALL:
                self._bind(ctx, require_identity(ctx), reach)
        await next()

    def _bind(self, ctx: Context, auth: AuthInfo, reach: CallerReach) -> None:
        if any(map(_asks_for_worker, ctx.query.filters)):
            raise InvalidQuery(f"filter: {_WORKER} is for operators")
        # What has no such field itself is bound through the run it belongs to.
        bind = ctx.query.add_filter if self._path else ctx.query.force
        bind_to_caller(bind, auth, reach, self._path)
        is_own_list = reach is CallerReach.OWN and self._path and not ctx.resource_id
        if is_own_list and not any(map(_is_narrow, ctx.query.filters)):
            *others, actor, tenant = ctx.query.filters
            ctx.query.filters = (*others, replace(cast(Compare, actor), few=True), tenant)
        match_client_keys(ctx.query, _mark(auth))
        if (page := ctx.scope.get(PAGE)) is not None:  # of the panel, which has its filters beside the query
            page.filters = tuple(widen_key_filter(one, _mark(auth)) for one in page.filters)
        hidden_types = self._work.handlers.hidden_types()
        if hidden_types:
            bind(f"{self._path}type", hidden_types, "not_in")
        if not self._path:
            select_deciding_fields(ctx, ["last_error"], "error")
            select_deciding_fields(ctx, KEYS, "actor_id", "tenant_id")


def _asks_for_worker(item: Filter) -> bool:
    conditions = item.conditions if isinstance(item, AnyOf) else (item,)
    # The second field of a comparison is the condition's value.
    return any(_WORKER in (one.field.name, getattr(one.value, "name", None)) for one in conditions)


def _is_narrow(item: Filter) -> bool:
    """Whether a condition leaves the records of a few runs."""
    if not isinstance(item, Compare) or item.path:
        return False
    return item.field.name in ("id", "workflow_id") and item.op in (Op.EQ, Op.IN)


class HideInternals:
    """Leaves the texts of exceptions, the names of workers and the stored form of keys to operators."""

    __name__ = "no_traces"

    def __init__(self, work: Work) -> None:
        self._work = work

    async def __call__(self, ctx: Context, next: Next) -> None:
        await next()
        response = ctx.response
        if response is None or response.error is not None:
            return
        if is_operator(ctx, self._work.access.admin_role):
            return
        data = response.data
        own = _mark(ctx.auth)
        for record in data if isinstance(data, list) else [data]:
            if isinstance(record, dict):
                _hide_internals(record, own)
                drop_added_fields(ctx, record)


def _hide_internals(record: Any, own: str) -> None:
    if not isinstance(record, dict):
        return
    record.pop(_WORKER, None)
    hide_texts_of_run(record)
    hide_texts_of_event(record)
    record.update(client_keys(record, own))
    _hide_internals(record.get("workflow"), own)  # the run of an event, when it was asked for along with it


def _mark(auth: AuthInfo | None) -> str:
    return mark(auth.tenant_id, auth.user_id) if auth is not None else mark(None, None)
