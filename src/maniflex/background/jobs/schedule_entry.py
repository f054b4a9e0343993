"""Jobs at fixed times: entries for `server.schedules`, so that no replica has to be up at the time."""

from __future__ import annotations

from typing import Any, Protocol

RELAY = "maniflex.jobs.relay"


class ScheduleDeclarations(Protocol):
    """The part of `server.schedules` that jobs use."""

    def add(
        self,
        name: str,
        *,
        cron: str,
        timezone: str = "UTC",
        run: str | None = None,
        payload: Any = None,
        policy: str = "once",
    ) -> Any: ...


def add_entry(
    schedules: ScheduleDeclarations, type: str, cron: str, payload: Any, *, relayed: bool, **options: Any
) -> None:
    """Schedule a job; one for a queue other than these runs is handed on by a run."""
    name = options.pop("name", None) or f"job:{type}"
    if relayed:
        schedules.add(name, cron=cron, run=RELAY, payload={"type": type, "payload": payload}, **options)
    else:
        schedules.add(name, cron=cron, run=type, payload=payload, **options)


__all__ = ["RELAY", "ScheduleDeclarations", "add_entry"]
