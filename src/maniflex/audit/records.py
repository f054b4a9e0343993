"""The records of an audit trail, as sinks get them. Values are those of JSON, and none of them is secret."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class FieldChange(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """One field of a record, before and after a write; in JSON `{"from": …, "to": …}`."""

    from_: Any = None
    to: Any = None


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One write that is committed.

    A sink may get it twice, with the same `id`. `result` is the record after the write, of a delete the one
    that was deleted; `changes` is None unless they were asked for.
    """

    id: str
    timestamp: datetime
    model: str
    operation: str  # create, update, delete or restore
    resource_id: str
    actor: str | None = None
    tenant_id: str | None = None
    request_id: str | None = None
    trace_id: str | None = None
    service_name: str = ""
    source: str = "code"
    reason: str | None = None
    result: dict[str, Any] | None = None
    changes: dict[str, FieldChange] | None = None


class ReadAuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that showed records: `record_id` says which one, `record_count` how many."""

    id: str
    timestamp: datetime
    model: str | None
    operation: str
    record_id: str | None = None
    record_count: int | None = None
    actor: str | None = None
    roles: list[str] = msgspec.field(default_factory=list)
    tenant_id: str | None = None
    session_id: str | None = None
    auth_method: str | None = None
    request_id: str | None = None
    trace_id: str | None = None
    service_name: str = ""
    client_ip: str | None = None
    user_agent: str | None = None


class ActionAuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One action that was done; `body` has the fields of its body that were asked for."""

    id: str
    timestamp: datetime
    action: str
    method: str
    path: str  # as it was declared
    params: dict[str, str] = msgspec.field(default_factory=dict)
    status: int = 200
    actor: str | None = None
    tenant_id: str | None = None
    request_id: str | None = None
    trace_id: str | None = None
    service_name: str = ""
    body: dict[str, Any] | None = None


AnyRecord = AuditRecord | ReadAuditRecord | ActionAuditRecord
