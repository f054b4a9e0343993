"""Actions as targets of schedules: which there are, what they take, and calling them in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from maniflex._json import encode
from maniflex.background.declaring import switch_problems
from maniflex.background.schedules.definition import Fits, Models
from maniflex.errors import Fatal, InvalidSchedule, RequestError
from maniflex.features.actions import Action
from maniflex.model.base import Model
from maniflex.pipeline.answer import answer
from maniflex.pipeline.binding import bind
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.in_process import in_process_context
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response, status_of
from maniflex.pipeline.routes import Endpoint
from maniflex.pipeline.runtime import Runtime


def schedulable(actions: Sequence[Action]) -> dict[str, Fits]:
    """The actions a schedule may call, by name: no parameter in the path, and no other of the name."""
    names = [action.name for action in actions]
    callable = (a for a in actions if "{" not in a.path and names.count(a.name) == 1)
    return {action.name: _PayloadCheck(action) for action in callable}


def open_to_clients(actions: Sequence[Action]) -> frozenset[str]:
    """The names of the actions that a schedule made over REST may call, past their auth step."""
    return frozenset(action.name for action in actions if action.schedulable)


def schedulable_problems(actions: Sequence[Action]) -> list[str]:
    """Actions that are declared schedulable in a way that makes no sense, or that no schedule can call."""
    callable_names = schedulable(actions)
    problem = "a schedule calls an action by its name, which no other has, and without parameters in its path"
    unclear = [
        f"action {a.method} {a.path}: {flaw}"
        for a in actions
        for flaw in switch_problems(schedulable=a.schedulable)
    ]
    return unclear + [
        f"action {a.method} {a.path}: it is schedulable, but {problem}"
        for a in actions
        if a.schedulable is True and a.name not in callable_names
    ]


class _PayloadCheck:
    """Refuses a payload that an action would refuse at every call."""

    def __init__(self, action: Action) -> None:
        self._name = action.name
        self._request = action.request

    def __call__(self, payload: Any, models: Models | None) -> None:
        is_model = isinstance(self._request, type) and issubclass(self._request, Model)
        if self._request is None or (is_model and models is None):
            return
        if payload is None:
            raise InvalidSchedule("payload", f"the action {self._name!r} needs one")
        try:
            bind(encode(payload, "payload").encode(), self._request)
        except RequestError as error:
            field, message = _first(error)
            raise InvalidSchedule(".".join(filter(None, ("payload", field))), message) from None


def _first(error: RequestError) -> tuple[str, str]:
    details: Any = error.details or [{}]
    return details[0].get("field", ""), details[0].get("message", error.message)


class ActionCaller:
    """Calls actions in this process, in the name of a schedule's actor or, where it has none, of `schedule`.

    That identity needs no auth step to be believed. It has no roles.
    """

    def __init__(self, runtime: Runtime, endpoints: Sequence[Endpoint]) -> None:
        self._runtime = runtime
        self._endpoints = {
            e.about.name: replace(e, main=e.behind_auth)
            for e in endpoints
            if e.behind_auth is not None and e.about is not None
        }

    async def __call__(self, name: str, payload: Any, *, actor_id: str | None, tenant_id: str | None) -> Any:
        endpoint = self._endpoints.get(name)
        if endpoint is None or "{" in endpoint.path:
            raise Fatal(f"there is no action {name!r} to call")
        ctx = self._context(endpoint, payload)
        ctx.auth = AuthInfo(
            user_id=actor_id or "schedule",
            tenant_id=tenant_id or "",
            identity_type="service_account",
            auth_method="in-process",
        )
        response = await answer(endpoint, ctx)
        status = status_of(response)
        if status >= 500:
            raise RuntimeError(f"the action {name!r} answered {status}")
        if status >= 400:
            raise Fatal(f"the action {name!r} answered {status}: {_error_text(response)}")
        return response.data if isinstance(response, Response) else None

    def _context(self, endpoint: Endpoint, payload: Any) -> Context:
        ctx = in_process_context(
            Context,
            self._runtime,
            Operation.ACTION,
            method=endpoint.method,
            path=endpoint.path,
            headers=[(b"content-type", b"application/json")],
            body=b"" if payload is None else encode(payload, "payload").encode(),
            request_id="schedule",
        )
        ctx.authenticated = ctx.csrf_exempt = True
        return ctx


def _error_text(response: Any) -> str:
    error = getattr(response, "error", None) or {}
    return f"{error.get('code', '')} {error.get('message', '')}".strip()
