"""The tables of imports, exports and bulk changes of the panel: what is asked, how far it is, its files."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from maniflex.model.base import Model
from maniflex.model.declared import Index
from maniflex.model.field import field


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
