"""Whose runs a request may see: the caller's own, or everybody's for the admin role.

The condition is forced on the request, so it holds for lists, counts, single records, aggregates,
exports and writes alike. A run is the caller's by actor and by tenant; a caller without a tenant sees
runs without one. Types whose handler is `internal`, stack traces and the names of workers are shown to
the admin role alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from maniflex.background.runs.client import Work
from maniflex.control.keys import find_as_said, mark, show_as_said
from maniflex.errors import InvalidQuery, Unauthorized
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import Next
from maniflex.query.operators import Op
from maniflex.query.tree import AnyOf, Compare, Filter

_WORKER = "leased_by"  # names a machine and a process of the application


class Guard:
    """Binds requests for runs, or with `path` for records that belong to one."""

    __name__ = "own_runs"

    def __init__(self, work: Work, path: str = "") -> None:
        self._work = work
        self._path = path

    async def __call__(self, ctx: Context, next: Next) -> None:
        if ctx.operation is not Operation.OPTIONS:  # which shows no run
            auth = identified(ctx)
            if not ctx.has_role(self._work.access.admin_role):
                self._bind(ctx, auth)
        await next()

    def _bind(self, ctx: Context, auth: AuthInfo) -> None:
        if any(map(_asks_for_worker, ctx.query.filters)):
            raise InvalidQuery(f"filter: {_WORKER} is for admins")
        # What has no such field itself is bound through the run it belongs to.
        bind = ctx.query.add_filter if self._path else ctx.query.force
        bind(f"{self._path}actor_id", auth.user_id)
        if self._path and not ctx.resource_id and not any(map(_is_narrow, ctx.query.filters)):
            *others, actor = ctx.query.filters
            ctx.query.filters = (*others, replace(cast(Compare, actor), few=True))
        if auth.tenant_id:
            bind(f"{self._path}tenant_id", auth.tenant_id)
        else:
            bind(f"{self._path}tenant_id", op="is_null")
        find_as_said(ctx.query, _mark(auth))
        internal = [handler.type for handler in self._work.handlers if handler.internal]
        if internal:
            bind(f"{self._path}type", internal, "not_in")


def _asks_for_worker(item: Filter) -> bool:
    conditions = item.conditions if isinstance(item, AnyOf) else (item,)
    return any(one.field.name == _WORKER for one in conditions)


def _is_narrow(item: Filter) -> bool:
    """Whether a condition leaves the records of a few runs."""
    if not isinstance(item, Compare) or item.path:
        return False
    return item.field.name in ("id", "workflow_id") and item.op in (Op.EQ, Op.IN)


def identified(ctx: Context) -> AuthInfo:
    """Who is asking; `Unauthorized` when nobody knows."""
    if ctx.auth is None or not ctx.auth.user_id:
        raise Unauthorized()
    return ctx.auth


class Discretion:
    """Leaves stack traces, the names of workers and the stored form of keys to the admin role."""

    __name__ = "no_traces"

    def __init__(self, work: Work) -> None:
        self._work = work

    async def __call__(self, ctx: Context, next: Next) -> None:
        await next()
        response = ctx.response
        if response is None or response.error is not None or ctx.has_role(self._work.access.admin_role):
            return
        data = response.data
        own = _mark(ctx.auth)
        for record in data if isinstance(data, list) else [data]:
            _discreet(record, own)


def _discreet(record: Any, own: str) -> None:
    if not isinstance(record, dict):
        return
    record.pop(_WORKER, None)
    for name in ("error", "data"):
        if isinstance(record.get(name), dict):
            record[name].pop("worker", None)
            record[name].pop("trace", None)
    record.update(show_as_said(record, own))
    _discreet(record.get("workflow"), own)  # the run of an event, when it was asked for along with it


def _mark(auth: AuthInfo | None) -> str:
    return mark(auth.tenant_id, auth.user_id) if auth is not None else mark(None, None)
