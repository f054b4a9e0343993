"""What a firing becomes: a run of the schedule's own, a call of an action, or a POST to a URL.

The last two are runs too, of types nobody else may submit, so leases, timeouts, retries and their
history are those of durable runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from maniflex.background.runs.client import Work
from maniflex.background.runs.run import Run
from maniflex.background.schedules.definition import OWN
from maniflex.background.schedules.post import Refused, Sent, post
from maniflex.background.schedules.store import Fired
from maniflex.background.threads import DaemonThreads, on_thread
from maniflex.config import Config
from maniflex.db.port import Tx
from maniflex.errors import Fatal

ACTION = f"{OWN}action.v1"
URL = f"{OWN}url.v1"
MOST_POSTS = 64  # at once
_WORTH_ANOTHER_TRY = (408, 425, 429)


class Allowed(Protocol):
    """Whether the schedule a run came from may reach private addresses; raises when it came from none."""

    async def __call__(self, run: Run) -> bool: ...


class CallAction(Protocol):
    """Calls a registered action in this process; what it returns is the run's result."""

    async def __call__(self, name: str, payload: Any) -> Any: ...


async def submit(work: Work, fired: Sequence[Fired], tx: Tx) -> list[tuple[str, str]]:
    """Submit the run of each firing, in the transaction that records it; firing and run ids."""
    together: dict[tuple[str, int | None], list[Fired]] = defaultdict(list)
    for one in fired:
        together[_type(one)].append(one)
    pairs: list[tuple[str, str]] = []
    for (type, attempts), group in together.items():
        payloads = [_payload(one) for one in group]
        timeout = _timeout(work, type)
        runs = await work.submit_many(type, payloads, max_attempts=attempts, timeout=timeout, tx=tx)
        pairs += [(one.id, run.id) for one, run in zip(group, runs, strict=True)]
    return pairs


def _type(one: Fired) -> tuple[str, int | None]:
    schedule = one.schedule
    if schedule.kind == "run":
        return schedule.target, schedule.attempts  # without attempts, as many as the handler takes
    return ACTION if schedule.kind == "action" else URL, schedule.attempts or 1


def _timeout(work: Work, type: str) -> timedelta | None:
    """How long an attempt may take whose handler, as far as is known here, sets no limit of its own."""
    handler = work.handlers.get(type)
    if type == URL or (handler is not None and handler.timeout is not None):
        return None  # the time of a POST begins when a thread takes it up
    return work.parts.config.schedule_execution_timeout


def _payload(one: Fired) -> Any:
    schedule = one.schedule
    if schedule.kind == "run":
        return schedule.payload
    return {
        "target": schedule.target,
        "payload": schedule.payload,
        "schedule_id": schedule.id,
        "schedule": schedule.name,
        "firing_id": one.id,
        "due_at": one.firing.due_at.isoformat(),
    }


def register(work: Work, config: Config, action: Callable[[], CallAction | None], allowed: Allowed) -> None:
    """Handle the runs that schedules submit on their own behalf."""
    lease, timeout = config.schedule_lock_timeout, config.schedule_execution_timeout
    threads = DaemonThreads(MOST_POSTS, "maniflex-post")  # so that slow receivers hold up nobody else

    async def call_action(run: Run) -> Any:
        await allowed(run)
        call = action()
        if call is None:
            raise Fatal("this process has no actions to call")
        return await call(run.payload["target"], run.payload["payload"])

    async def call_url(run: Run) -> dict[str, Any]:
        allow_private = await allowed(run)
        # The same for every attempt, so that the receiver can tell a repetition.
        firing = run.payload["firing_id"]
        headers = {
            "Idempotency-Key": firing,
            "X-Maniflex-Firing": firing,
            "X-Maniflex-Schedule": run.payload["schedule_id"],
            "X-Maniflex-Due": run.payload["due_at"],
        }
        body = run.payload["payload"]
        given = (run.payload["target"], {} if body is None else body, headers)
        send = partial(post, *given, timeout=timeout.total_seconds(), allow_private=allow_private)
        try:
            sent = await on_thread(send, threads)
        except Refused as error:
            raise Fatal(str(error)) from None
        return _judged(sent)

    own = partial(work.handler, internal=True, max_attempts=1, lease=lease)
    own(ACTION, timeout=timeout)(call_action)
    own(URL)(call_url)  # the time of a POST begins when a thread takes it up


def _judged(sent: Sent) -> dict[str, Any]:
    if 200 <= sent.status < 300:
        return {"status": sent.status, "body": sent.text, "truncated": sent.truncated}
    if sent.status >= 500 or sent.status in _WORTH_ANOTHER_TRY:
        raise RuntimeError(f"the URL answered {sent.status}")
    raise Fatal(f"the URL answered {sent.status}; redirects are not followed")
