"""Dead letters: the run that is submitted for each run that fails for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maniflex._ids import new_id
from maniflex.background.runs import options as checks
from maniflex.db.port import Tx
from maniflex.errors import DatabaseError, NotFound

if TYPE_CHECKING:
    from maniflex.background.runs.api import Work
    from maniflex.background.runs.model import WorkflowRun

KEY = "dead:"  # begins the idempotency key of a dead letter


async def submit_letter(work: Work, letter: str, id: str, type: str, error: str | None, tx: Tx) -> None:
    """Submit the dead letter of a run, in the transaction that fails it."""
    payload: dict[str, Any] = {"run_id": id, "type": type, "payload": None, "error": error, "attempt": None}
    who = checks.Options()
    try:
        run = await work.records(tx).read(id)
    except NotFound:  # deleted while it ran: it needs no letter
        return
    except (ValueError, DatabaseError):
        pass  # what cannot be read is what it failed for
    else:
        if letter in _told_types(run):
            work.environment.logger.error("run %s (%s): dead letters in a circle; it has none", id, type)
            return
        payload |= {"payload": run.payload, "attempt": run.attempt}
        who = checks.Options(actor_id=run.actor_id, tenant_id=run.tenant_id, trace_id=run.trace_id)
    await work.submit(letter, payload, idempotency_key=f"{KEY}{id}:{new_id()}", tx=tx, **who)


def _told_types(run: WorkflowRun) -> set[str]:
    """The types of the runs that a dead letter tells of, each the letter of the one before.

    One process knows the letters of its own handlers and refuses circles among them; a circle through
    the handlers of several is seen only here.
    """
    types: set[str] = set()
    payload: Any = run.payload if (run.idempotency_key or "").startswith(KEY) else None
    while isinstance(payload, dict) and isinstance(payload.get("type"), str):
        types.add(payload["type"])
        payload = payload.get("payload")
    return types
