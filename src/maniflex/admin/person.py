"""Who looks at the panel, and what code of the application is given when it acts for that person."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Unpack

from maniflex.pipeline.context import AuthInfo
from maniflex.pipeline.in_process import RequestOptions
from maniflex.pipeline.response import Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """An identity that may enter, and what its session needs."""

    auth: AuthInfo | None  # None: an open panel, whose requests are anonymous
    name: str
    csrf: str
    session_id: str = ""
    forwarded_headers: Mapping[str, str] = field(default_factory=dict)  # for the auth step

    @property
    def id(self) -> str:
        return "" if self.auth is None else self.auth.user_id

    @property
    def tenant_id(self) -> str:
        return "" if self.auth is None else self.auth.tenant_id

    @property
    def may_choose_tenant(self) -> bool:
        """Whether the person belongs to no tenant and has a session that keeps the one it chooses."""
        auth = self.auth
        return auth is not None and bool(self.session_id) and (not auth.tenant_id or auth.tenant_chosen)

    @property
    def key(self) -> tuple[Any, ...]:
        """What two people have in common whom every rule of the auth step answers alike."""
        if self.auth is None:
            return ("", ())
        return (self.auth.user_id, tuple(self.auth.roles), self.auth.tenant_id, tuple(self.auth.scopes))


class Origin(Protocol):
    """A request, as far as it says where it came from."""

    @property
    def request_id(self) -> str: ...
    @property
    def client_ip(self) -> str: ...
    @property
    def scope(self) -> Mapping[str, Any]: ...


class Visitor(Protocol):
    """A request to the panel, as far as it says who asks."""

    @property
    def ctx(self) -> Origin: ...
    @property
    def person(self) -> Person | None: ...


class Requests(Protocol):
    """Asks the API as one person."""

    async def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Response:
        """The answer to a request as a client would send it."""


class ActingRequest(Protocol):
    """A request that code of the application acts in, or the one that asked for it."""

    @property
    def request_id(self) -> str: ...
    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]: ...


class AdminContext:
    """What actions, cards and pages of the application are given: the person, and requests as that person."""

    def __init__(self, person: Person, api: Requests, ctx: ActingRequest, form: Any = None) -> None:
        self._person = person
        self._api = api
        self.form = form
        self.request_id: str = ctx.request_id
        self.logger: logging.LoggerAdapter[logging.Logger] = ctx.logger

    @property
    def auth(self) -> AuthInfo | None:
        """Who acts."""
        return self._person.auth

    @property
    def tenant_id(self) -> str:
        """The tenant that the person works in; empty without one."""
        return self._person.tenant_id

    async def call(self, method: str, path: str, **options: Unpack[RequestOptions]) -> Response:
        """Ask a route of the API as this person; the path is written as a client would."""
        return await self._api.request(method, path, **options)
