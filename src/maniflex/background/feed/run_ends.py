"""Events of runs and jobs that are over: `run.{type}.succeeded`, `job.{type}.failed`, and so on.

They are written by the transaction that settles the run, so none is missed and none is invented. They say
what the owner of the run sees over REST: the result, or the code of the error, with the text of `Fatal` and
`retry_in` alone. What is stored encrypted is in no event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from maniflex._json import decode, encode
from maniflex._tables import PartialTable
from maniflex.background.feed.api import Events
from maniflex.background.feed.described import DescribedType, EventType
from maniflex.background.runs.engine import RunEngine
from maniflex.background.runs.handlers import CODES_WITH_TEXT
from maniflex.background.runs.model import Status
from maniflex.db.port import Row, Tx
from maniflex.encryption.sealed_json import is_sealed_json
from maniflex.errors import RequestError, ValidationFailed
from maniflex.events.event import LONGEST_TEXT, Event
from maniflex.events.patterns import LONGEST

OF_FRAMEWORK = "maniflex."  # begins the types of runs that no application declared
RUN_ENDINGS: PartialTable[Status, str] = PartialTable(
    {Status.SUCCEEDED: "succeeded", Status.FAILED: "failed", Status.CANCELLED: "cancelled"},
    others="are no end",
)
JOB_ENDINGS: PartialTable[Status, str] = PartialTable(
    {Status.SUCCEEDED: "completed", Status.FAILED: "failed"},
    others="are no end, or one that the application has brought about by itself",
)
_FOREIGN = re.compile(r"[^A-Za-z0-9_.-]")
_EMPTY = re.compile(r"(?<=\.)(?=\.|$)")  # a segment without a character


class EndFamily:
    """The types of the events of runs, or of jobs, and which of them their owners may hear of."""

    def __init__(
        self,
        prefix: str,
        endings: Mapping[Status, str],
        is_meant: Callable[[str], bool],
        is_hidden: Callable[[str], bool],
        known_types: Callable[[], Iterable[str]],
    ) -> None:
        self.prefix = prefix
        self.endings = endings
        self.is_meant = is_meant  # whether runs of this type are told of
        self._is_hidden = is_hidden  # whether clients see nothing of runs of this type
        self._known_types = known_types  # those with a handler here
        title = f"A {prefix} is over"
        self._shown = EventType(f"{prefix}.*", None, title, "", "actor", None)
        self._hidden = EventType(f"{prefix}.*", None, title, "", "nobody", None)

    def type_of(self, type: str, ending: str) -> str:
        """The type of the event; characters that types of events do not have become hyphens.

        >>> EndFamily("run", RUN_ENDINGS, bool, bool, list).type_of("mail/send.v1", "succeeded")
        'run.mail-send.v1.succeeded'
        """
        most = LONGEST - len(f"{self.prefix}..{ending}")
        name = _EMPTY.sub("_", _FOREIGN.sub("-", type))
        return f"{self.prefix}.{_EMPTY.sub('_', name[:most])[:most]}.{ending}"

    def find_type(self, event: Event) -> EventType | None:
        """What is said of the type of an event of this application, if it is one of ours."""
        if not event.type.startswith(f"{self.prefix}."):
            return None
        type = event.data.get("type") if isinstance(event.data, dict) else None
        ending = event.type.rpartition(".")[2]
        if not isinstance(type, str) or event.type != self.type_of(type, ending):
            return None
        return self._hidden if self._is_hidden(type) else self._shown

    def describe(self) -> Iterator[DescribedType]:
        """The types of the events of runs with a handler here, which their owners may hear of."""
        for type in sorted(self._known_types()):
            if type.startswith(OF_FRAMEWORK) or self._is_hidden(type) or not self.is_meant(type):
                continue
            for ending in self.endings.values():
                yield DescribedType(
                    self.type_of(type, ending),
                    f"{type} {ending}",
                    f"A {self.prefix} of the type {type} is over.",
                    "actor",
                    ending=ending,
                )


class EndPublisher:
    """Publishes the ends of runs in the transactions that settle them."""

    def __init__(
        self, events: Events, family: EndFamily, runs: RunEngine, max_size: int, path: str | None
    ) -> None:
        self._events = events
        self._family = family
        self._runs = runs
        self._max_size = max_size
        self._path = path  # where clients read such a run

    async def __call__(self, ids: Sequence[str], tx: Tx) -> None:
        """Publish what came of those of these runs that are over."""
        rows = [row for row in await self._runs.store.ends(ids, tx) if self._is_meant(row)]
        if rows:
            await self._events.publish_many([await self._event(row) for row in rows], tx=tx)

    def _is_meant(self, row: Row) -> bool:
        type, status = row[1], row[2]
        is_ours = status in self._family.endings and not type.startswith(OF_FRAMEWORK)
        return is_ours and self._family.is_meant(type)

    async def _event(self, row: Row) -> Event:
        id, type, status, attempt, result, error, *who = row
        actor_id, tenant_id, traceparent = [fitting_text(text) for text in who]
        data: dict[str, Any] = {"id": id, "type": type, "attempt": attempt}
        is_whole = True
        if status == Status.SUCCEEDED:
            is_whole = self._add_result(data, result)
        elif status == Status.FAILED:
            data["error"] = visible_error(await self._error(id, error))
        return Event(
            self._family.type_of(type, self._family.endings[Status(status)]),
            data,
            subject=fitting_text(f"{self._family.prefix}/{id}"),
            time=self._runs.clock.now(),
            actor_id=actor_id,
            tenant_id=tenant_id,
            traceparent=traceparent,
            dataref=None if is_whole or self._path is None else f"{self._path}/{id}",
        )

    def _add_result(self, data: dict[str, Any], result: str | None) -> bool:
        """Add the result to the data, unless it is encrypted, too large or too deep; whether it is there."""
        if result is not None and is_sealed_json(result):
            return False
        try:
            whole_data = {**data, "result": None if result is None else decode(result)}
            if len(encode(whole_data, "data")) > self._max_size:
                return False
        except (ValueError, ValidationFailed):
            return False
        data.update(whole_data)
        return True

    async def _error(self, id: str, error: str | None) -> Any:
        """The error of a run; of one that is stored encrypted, the code alone."""
        if error is None:
            return None
        try:
            value = decode(await self._runs.sealing.open(error, "workflow_run.error", id))
        except (ValueError, RequestError):
            return None
        return {"code": value.get("code")} if is_sealed_json(error) else value


class FeedBus:
    """What workers of another queue tell of their jobs: after the fact, as that queue has no transactions."""

    def __init__(self, events: Events, family: EndFamily) -> None:
        self._events = events
        self._family = family

    async def publish(self, type: str, payload: dict[str, Any], /) -> None:
        """Publish the end of a job with what its owner may know of it."""
        ending = type.rpartition(".")[2]
        data = {name: payload[name] for name in ("id", "type", "attempt")}
        if "error" in payload:
            data["error"] = visible_error({"code": payload.get("code"), "message": payload["error"]})
        else:
            data["result"] = payload.get("result")
        await self._events.publish(
            self._family.type_of(payload["type"], ending),
            data,
            subject=fitting_text(f"{self._family.prefix}/{payload['id']}"),
            actor_id=fitting_text(payload["actor_id"]),
            tenant_id=fitting_text(payload["tenant_id"]),
            outside_transaction=True,
        )


def visible_error(error: Any) -> dict[str, Any]:
    """What the owner of a run may know of its failure."""
    if not isinstance(error, dict):
        return {"code": "error"}
    names = ("code", "message") if error.get("code") in CODES_WITH_TEXT else ("code",)
    return {name: error[name] for name in names if name in error}


def fitting_text(text: str | None) -> str | None:
    """The text, if events may have it as an attribute."""
    return text if text and len(text) <= LONGEST_TEXT else None
