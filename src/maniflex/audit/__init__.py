"""Records of who did what, and the places they go to; the entries that make them are in `middleware.db`.

from maniflex.audit import LogSink
from maniflex.middleware import db

server.pipeline.db.register(db.audit_log(LogSink(), changes=True), operations=Operation.WRITES)
"""

from maniflex.audit.records import (
    ActionAuditRecord,
    AuditRecord,
    AuditSink,
    FieldChange,
    LogSink,
    ReadAuditRecord,
)
from maniflex.audit.tables import TableSink

__all__ = [
    "ActionAuditRecord",
    "AuditRecord",
    "AuditSink",
    "FieldChange",
    "LogSink",
    "ReadAuditRecord",
    "TableSink",
]
