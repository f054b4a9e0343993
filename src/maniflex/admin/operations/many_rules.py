"""What can be done with many runs or messages, and which of them it can be done with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maniflex.admin.operations.message_filters import read_filter as read_message_filter
from maniflex.admin.operations.reach import Filters, WorkReach
from maniflex.admin.operations.run_actions import COMMANDS
from maniflex.admin.operations.run_list import read_filter
from maniflex.background.outbox.model import OutboxMessage
from maniflex.background.runs.model import WorkflowRun
from maniflex.errors import InvalidQuery, NotFound

# By the name of the list: what its records are, and the commands with their endpoints and audit actions.
MODELS: dict[str, str] = {"run": WorkflowRun.__name__, "message": OutboxMessage.__name__}
ENDPOINTS: dict[str, dict[str, tuple[str, str]]] = {
    "run": COMMANDS,
    "message": {"redrive": ("message.redrive", "outbox.redrive")},
}
DEAD: Filters = (("status", "eq", "dead"),)


async def read_choice(
    reach: WorkReach, name: str, action: str, pairs: Sequence[tuple[str, str]]
) -> tuple[Filters, Filters]:
    """The conditions of a query string, and those that a record must meet for the action."""
    if action not in ENDPOINTS[name]:
        raise NotFound(reach.panel.texts("no_such_page"))
    if name == "message":
        return read_message_filter(reach, pairs), DEAD
    run_filter = await read_filter(reach, pairs)
    if run_filter.deleted:
        raise InvalidQuery(reach.panel.texts("ops_run_deleted"))
    conditions: dict[str, list[tuple[str, str, Any]]] = {
        "retry": [("status", "in", ["failed", "cancelled"])],
        "cancel": [("status", "in", ["pending", "leased"])],
        "now": [("status", "eq", "pending"), ("run_at", "gt", reach.now()), ("waiting_for", "is_null", None)],
        "delete": [],
    }
    return run_filter.filters, conditions[action]
