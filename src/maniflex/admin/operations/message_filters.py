"""The filters of the list of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maniflex.admin.operations.reach import WorkReach
from maniflex.background.outbox.model import MessageStatus
from maniflex.errors import InvalidQuery

_PLAIN = {"f_kind": "kind", "f_key": "key", "f_status": "status", "f_about": "about", "f_tenant": "tenant_id"}
FILTERS = (*_PLAIN, "f_error")


def read_filter(reach: WorkReach, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str, Any]]:
    """The conditions of a query string; an unknown filter is refused by name."""
    filters: list[tuple[str, str, Any]] = []
    for name, text in pairs:
        if name.startswith("f_") and name not in FILTERS:
            raise InvalidQuery(f"{name}: there is no such filter")
        if not text or name not in FILTERS:
            continue
        if name == "f_status" and text not in list(MessageStatus):
            raise InvalidQuery(f"f_status: is one of {', '.join(MessageStatus)}")
        if name == "f_error":
            if not reach.reads_internals:
                raise InvalidQuery("f_error: the texts of errors are for operators")
            filters += [("last_error", "not_null", None), ("last_error", "contains", text)]
        else:
            filters.append((_PLAIN[name], "eq", text))
    return filters
