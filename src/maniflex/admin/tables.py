"""The tables of the panel, as internal models without routes: superusers, sessions, events, views."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from maniflex.model.base import Model
from maniflex.model.declared import Index
from maniflex.model.field import field

# The tables of imports, exports and bulk changes of the panel: what is asked, how far it is, its files.


class AdminTransfer(Model, table="admin_transfer", headless=True):
    """An import, an export or a change of many records that one person asked for."""

    kind: str  # import, export or bulk
    model: str
    user_id: str = field(default="", index=True, relation=None)
    user_name: str = field(default="")
    tenant_id: str | None = field(default=None, relation=None)
    identity: dict[str, Any] | None = field(default=None)
    address: str = field(default="")
    request_id: str = field(default="", relation=None)
    settings: dict[str, Any] = field(default_factory=dict)
    phase: str = field(default="draft")  # draft, check, checked, apply or done
    run_id: str | None = field(default=None, relation=None)
    file_name: str = field(default="")
    size: int = field(default=0)
    digest: str = field(default="")
    position: int = field(default=0)  # rows or records that are done
    place: str = field(default="")  # of a bulk change: the id of the last record that is done
    total: int | None = field(default=None)
    created: int = field(default=0)
    updated: int = field(default=0)
    unchanged: int = field(default=0)
    refused: int = field(default=0)
    message: str = field(default="")
    started_at: datetime | None = field(default=None)
    finished_at: datetime | None = field(default=None)
    expires_at: datetime = field(index=True)


class AdminTransferPiece(
    Model,
    table="admin_transfer_piece",
    headless=True,
    indices=[Index(("transfer_id", "number"), unique=True)],
):
    """A piece of a file, compressed: of one that was sent, or of one that was made."""

    transfer_id: str = field(relation=None)
    number: int
    content: bytes


class AdminTransferRefusal(
    Model,
    table="admin_transfer_refusal",
    headless=True,
    indices=[Index(("transfer_id", "phase", "line"))],
):
    """A line or a record that was refused, and why."""

    transfer_id: str = field(relation=None)
    phase: str
    line: int
    record_id: str = field(default="", relation=None)
    field: str = field(default="")
    message: str


TRANSFER_TABLES: tuple[type[Model], ...] = (AdminTransfer, AdminTransferPiece, AdminTransferRefusal)


class AdminUser(Model, table="admin_user", headless=True):
    """A person who signs in to the panel with a password of its own."""

    email: str = field(unique=True, max_length=254)
    password: str = field(default="", hidden=True)
    roles: list[str] = field(default_factory=list)
    tenant_id: str | None = field(default=None, relation=None)
    active: bool = field(default=True)
    last_login_at: datetime | None = field(default=None)


class AdminSession(Model, table="admin_session", headless=True):
    """A browser that signed in; its id is the SHA-256 of what the cookie holds."""

    user_id: str = field(index=True, relation=None)
    name: str
    identity: dict[str, Any] = field(default_factory=dict)
    tenant_id: str | None = field(default=None, relation=None)
    seen_at: datetime
    checked_at: datetime
    expires_at: datetime = field(index=True)
    address: str
    user_agent: str


class AdminEvent(
    Model,
    table="admin_event",
    headless=True,
    indices=[
        Index(("action", "network", "created_at")),
        Index(("action", "account", "created_at")),
        Index(("model", "record_id")),
    ],
):
    """One thing that somebody did in the panel; names of fields, never their values."""

    actor_id: str | None = field(default=None, index=True, relation=None)
    actor_name: str = field(default="")
    tenant_id: str | None = field(default=None, relation=None)
    address: str = field(default="")
    network: str = field(default="")  # of the address, as attempts to sign in are counted
    action: str
    model: str = field(default="")
    record_id: str = field(default="", relation=None)
    fields: list[str] = field(default_factory=list)
    request_id: str = field(default="", relation=None)
    outcome: str = field(default="ok")
    reason: str = field(default="")
    account: str = field(default="")  # of a login: a digest of the name that was typed
    form_key: str | None = field(default=None, unique=True)  # a form that is sent twice acts once


class AdminView(
    Model, table="admin_view", headless=True, indices=[Index(("user_id", "model", "name"), unique=True)]
):
    """Filters, order and columns of a list under a name; without one, the columns a person chose."""

    user_id: str = field(relation=None)
    tenant_id: str | None = field(default=None, relation=None)  # others share it there alone
    model: str
    name: str = field(default="", max_length=100)
    query: str = field(default="")
    columns: list[str] = field(default_factory=list)
    shared: bool = field(default=False)


TABLES: tuple[type[Model], ...] = (AdminUser, AdminSession, AdminEvent, AdminView, *TRANSFER_TABLES)
