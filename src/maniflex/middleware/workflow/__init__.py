"""Workflow entries: a state machine on one field of a model.

from maniflex.middleware import workflow

status = workflow.machine(
    "status",
    workflow.allow_initial("draft"),
    workflow.allow("draft", "sent"),
    workflow.allow("sent", "paid", workflow.require_role("accountant")),
    workflow.on_transition("*", "paid", book_payment),
)
server.pipeline.validate.register(status, models=[Invoice])
"""

from maniflex._arguments import explain_section
from maniflex.middleware.workflow.machine import (
    Machine,
    allow,
    allow_any,
    allow_initial,
    machine,
    on_transition,
    require_role,
)

__all__ = ["Machine", "allow", "allow_any", "allow_initial", "machine", "on_transition", "require_role"]

explain_section(globals(), "workflow", __all__)
