"""The person behind a transfer, asked for again before every batch: still active, still with its role."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maniflex.admin.call import Api
from maniflex.admin.person import Person
from maniflex.admin.site import ModelSite
from maniflex.admin.superusers import identity_of, put_into_tenant, read_identity
from maniflex.admin.tables import AdminTransfer
from maniflex.errors import Fatal
from maniflex.pipeline.context import AuthInfo
from maniflex.pipeline.operation import Operation

if TYPE_CHECKING:
    from maniflex.admin.parts import PanelParts


@dataclass(frozen=True, slots=True)
class PastRequest:
    """The request that asked for a transfer, as far as it is needed after its end."""

    request_id: str
    client_ip: str
    scope: dict[str, Any] = field(default_factory=dict)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        return logging.LoggerAdapter(logging.getLogger("maniflex"), {"request_id": self.request_id})


@dataclass(frozen=True, slots=True)
class PastVisitor:
    """The person who asked, and from where."""

    ctx: PastRequest
    person: Person


class Stopped(Fatal):
    """The person may not do it any more, so it ends here."""


async def ask_again(panel: PanelParts, transfer: AdminTransfer) -> PastVisitor:
    """The person as it is now; `Stopped` when it may not enter any more."""
    origin = PastRequest(
        transfer.request_id, transfer.address, {"client": (transfer.address, 0) if transfer.address else None}
    )
    if transfer.identity is None:
        person = Person(auth=None, name=transfer.user_name, csrf="")
        return PastVisitor(origin, person)
    auth = await _current_identity(panel, transfer)
    role = panel.admin.role
    if auth is None or (role is not None and role not in auth.roles):
        raise Stopped(f"{transfer.user_name} may not enter the panel any more")
    auth = put_into_tenant(auth, auth.session_id, transfer.tenant_id)
    if auth.tenant_id != (transfer.tenant_id or ""):
        raise Stopped(f"{transfer.user_name} works in another tenant now")
    return PastVisitor(origin, Person(auth=auth, name=transfer.user_name, csrf=""))


async def _current_identity(panel: PanelParts, transfer: AdminTransfer) -> AuthInfo | None:
    assert transfer.identity is not None
    if panel.admin.auth == "superuser":
        user = await panel.superusers.read(transfer.user_id)
        return None if user is None else identity_of(user)
    auth = read_identity(transfer.identity, "", None)
    refresh: Callable[[AuthInfo], Awaitable[AuthInfo | None]] | None = getattr(
        panel.admin.auth, "refresh", None
    )
    if refresh is not None:
        return await refresh(auth)
    # Nobody can be asked: the identity holds no longer than a session would.
    age = panel.runtime.clock.now() - transfer.created_at
    return auth if age <= panel.admin.session_lifetime else None


def api_of(panel: PanelParts, visitor: PastVisitor) -> Api:
    """The API as that person sees it."""
    return Api(panel.in_process, panel.private, visitor.person, visitor.ctx)


async def require_permission(api: Api, site: ModelSite, *operations: Operation) -> None:
    """`Stopped` when the auth step lets the person do none of these any more."""
    for operation in operations:
        if await api.may(site, operation):
            return
    raise Stopped(f"{site.plural}: {operations[0]} is not allowed any more")
