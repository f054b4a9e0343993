"""The keywords of `server.admin`, for type checkers; importing them loads nothing of the panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from maniflex.admin.declare import AdminAuth, Login, ModelName, Operations

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class AdminOptions(TypedDict, total=False):
    """Everything but the path."""

    title: str
    auth: str | Login | AdminAuth
    role: str | None
    models: Sequence[ModelName] | None
    exclude: Sequence[ModelName]
    read_only: bool
    operations: bool | Operations
    tenants: ModelName | None
    accounts: ModelName | None
    time_zone: str
    templates: str | Path | None
    assets: str | Path | None
    texts: Mapping[str, str] | None
    session_lifetime: timedelta
    idle_timeout: timedelta
    allow_unauthenticated: bool
