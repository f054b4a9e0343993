"""The run of a firing: one of the schedule's own type, a call of an action, or a POST to a URL.

The last two are runs too, of types that only schedules submit, so leases, timeouts, retries and their
history are those of durable runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol
from urllib.parse import quote

from maniflex._outbound import AddressRefused, Answer, post
from maniflex._threads import DaemonThreads, on_thread
from maniflex.background.runs.api import Work
from maniflex.background.runs.engine import RunEngine
from maniflex.background.runs.rows import Options
from maniflex.background.runs.run import Run
from maniflex.background.schedules.definition import OWN
from maniflex.background.schedules.store import Fired
from maniflex.config import Config
from maniflex.db.port import Tx
from maniflex.errors import Fatal

ACTION = f"{OWN}action.v1"
URL = f"{OWN}url.v1"
MOST_POSTS = 64  # at once
_WORTH_ANOTHER_TRY = (408, 425, 429)
_PLAIN = "!#$&'()*+,/:;=?@[]| "  # stands in a header as it is; other characters are written as %..


class MayReachPrivate(Protocol):
    """Whether the schedule a run came from may reach private addresses; raises when it came from none."""

    async def __call__(self, run: Run) -> bool: ...


class CallAction(Protocol):
    """Calls a registered action in this process; what it returns is the run's result."""

    async def __call__(
        self, name: str, payload: Any, *, actor_id: str | None, tenant_id: str | None
    ) -> Any: ...


async def submit(engine: RunEngine, firings: Sequence[Fired], tx: Tx) -> list[tuple[str, str]]:
    """Submit the run of each firing, in the transaction that records it; firing and run ids.

    A run acts in the name of the actor of its schedule, and for its tenant.
    """
    alike: dict[tuple[str, int | None, str | None, str | None], list[Fired]] = defaultdict(list)
    for one in firings:
        alike[(*_type(one), one.schedule.actor_id, one.schedule.tenant_id)].append(one)
    pairs: list[tuple[str, str]] = []
    for (type, attempts, actor_id, tenant_id), group in alike.items():
        payloads = [_payload(one) for one in group]
        options = Options(
            max_attempts=attempts, timeout=_timeout(engine, type), actor_id=actor_id, tenant_id=tenant_id
        )
        runs = await engine.submit_all(type, payloads, tx=tx, **options)
        pairs += [(one.id, run.id) for one, run in zip(group, runs, strict=True)]
    return pairs


def _type(one: Fired) -> tuple[str, int | None]:
    schedule = one.schedule
    if schedule.kind == "run":
        return schedule.target, schedule.attempts  # without attempts, as many as the handler takes
    return ACTION if schedule.kind == "action" else URL, schedule.attempts or 1


def _timeout(engine: RunEngine, type: str) -> timedelta | None:
    """How long an attempt may take whose handler, as far as is known here, sets no limit of its own."""
    handler = engine.handlers.get(type)
    if type == URL or (handler is not None and handler.timeout is not None):
        return None  # the time of a POST begins when a thread takes it up
    return engine.config.schedule_execution_timeout


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


def register(
    work: Work, config: Config, action: Callable[[], CallAction | None], may_reach_private: MayReachPrivate
) -> None:
    """Handle the runs that schedules submit on their own behalf."""
    lease, timeout = config.schedule_lock_timeout, config.schedule_execution_timeout
    threads = DaemonThreads(MOST_POSTS, "maniflex-post")  # so that slow receivers hold up no other work

    async def call_action(run: Run) -> Any:
        await may_reach_private(run)
        call = action()
        if call is None:
            raise Fatal("this process has no actions to call")
        target, payload = run.payload["target"], run.payload["payload"]
        return await call(target, payload, actor_id=run.actor_id, tenant_id=run.tenant_id)

    async def call_url(run: Run) -> dict[str, Any]:
        allow_private = await may_reach_private(run)
        # The same for every attempt, so that the receiver can tell a repetition.
        firing = run.payload["firing_id"]
        headers = {
            "Idempotency-Key": firing,
            "X-Maniflex-Firing": firing,
            "X-Maniflex-Schedule": run.payload["schedule_id"],
            "X-Maniflex-Due": run.payload["due_at"],
        }
        if run.traceparent:
            headers["traceparent"] = run.traceparent
        owner = {"X-Maniflex-Tenant": run.tenant_id, "X-Maniflex-Actor": run.actor_id}
        headers |= {name: quote(text, safe=_PLAIN) for name, text in owner.items() if text}
        body = run.payload["payload"]
        arguments = (run.payload["target"], {} if body is None else body, headers)
        send = partial(post, *arguments, timeout=timeout.total_seconds(), allow_private=allow_private)
        try:
            answer = await on_thread(send, threads)
        except AddressRefused as error:
            raise Fatal(str(error)) from None
        return _result_of(answer)

    own = partial(work.handler, internal=True, max_attempts=1, lease=lease)
    own(ACTION, timeout=timeout)(call_action)
    own(URL)(call_url)  # the time of a POST begins when a thread takes it up


def _result_of(answer: Answer) -> dict[str, Any]:
    if 200 <= answer.status < 300:
        return {"status": answer.status, "body": answer.text, "truncated": answer.truncated}
    if answer.status >= 500 or answer.status in _WORTH_ANOTHER_TRY:
        raise RuntimeError(f"the URL answered {answer.status}")
    raise Fatal(f"the URL answered {answer.status}; redirects are not followed")
