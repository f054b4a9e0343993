"""What a schedule may say: every rule about its fields, for code, REST and stored rows alike.

`check` gives the `Cron` of a sound definition and raises `InvalidSchedule`, naming the field, for
any other. `created` and `revised` say which columns a new or changed schedule gets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, get_args
from urllib.parse import urlsplit

from maniflex._names import did_you_mean
from maniflex.background.jsons import encode
from maniflex.background.runs.handlers import check_type
from maniflex.background.schedules.cron import Cron
from maniflex.background.schedules.model import Kind, Policy, Schedule, Status
from maniflex.errors import InvalidSchedule, ValidationFailed

KINDS, POLICIES, STATUSES = get_args(Kind), get_args(Policy), get_args(Status)
SAID = ("cron", "timezone", "kind", "target", "payload", "policy", "attempts", "allow_private")
CHANGEABLE = (*SAID, "name", "status")
_LONGEST = {"name": 100, "cron": 100, "timezone": 100, "target": 2000}
_MOST_ATTEMPTS = 100
OWN = "schedule."  # the types of runs that schedules submit on their own behalf
_DEFAULTS = {"timezone": "UTC", "kind": "run", "policy": "once", "status": "active"}


def check(values: Mapping[str, Any], actions: Collection[str] | None = None) -> Cron:
    """The times of a definition; with `actions`, the action it names must be one of them."""
    for name, longest in _LONGEST.items():
        _check_text(name, values.get(name), longest)
    _check_choice("kind", values.get("kind"), KINDS)
    _check_choice("policy", values.get("policy"), POLICIES)
    _check_choice("status", values.get("status", "active"), STATUSES)
    attempts = values.get("attempts")
    if attempts is not None and not (type(attempts) is int and 1 <= attempts <= _MOST_ATTEMPTS):
        raise InvalidSchedule("attempts", f"it is a whole number from 1 to {_MOST_ATTEMPTS}")
    check_target(values["kind"], values["target"])
    if values["kind"] == "action" and actions is not None and values["target"] not in actions:
        hint = did_you_mean(values["target"], actions)
        raise InvalidSchedule("target", f"there is no action {values['target']!r}{hint}")
    _check_payload(values.get("payload"))
    return Cron.parse(values["cron"], values["timezone"])


def check_target(kind: str, target: str) -> None:
    """Whether there can be such a target at all."""
    if kind == "run":
        try:
            check_type(target)
        except ValidationFailed as error:
            raise InvalidSchedule("target", error.message) from None
        if target.startswith(OWN):  # their payloads say what only a checked schedule may
            raise InvalidSchedule("target", f"runs of {OWN}* are those of schedules; write action= or url=")
    elif kind == "url":
        problem = _url_problem(target)
        if problem:
            raise InvalidSchedule("target", problem)
    elif kind != "action":
        raise InvalidSchedule("kind", f"{kind!r} is none of {', '.join(KINDS)}")


def created(
    values: Mapping[str, Any], now: datetime, actions: Collection[str] | None = None
) -> dict[str, Any]:
    """The fields of a new schedule, with the time it is due first."""
    full = {**_DEFAULTS, **values}
    cron = check(full, actions)
    return {**full, "next_run_at": _next(cron, now) if full["status"] == "active" else None}


def revised(
    before: Schedule, changes: Mapping[str, Any], now: datetime, actions: Collection[str] | None = None
) -> dict[str, Any]:
    """The fields to write so that the changes hold; a due time moves only with what decides it."""
    unknown = [name for name in changes if name not in CHANGEABLE]
    if unknown:
        raise InvalidSchedule(unknown[0], f"it cannot be changed{did_you_mean(unknown[0], CHANGEABLE)}")
    current = {name: getattr(before, name) for name in CHANGEABLE}
    after = {**current, **changes}
    cron = check(after, actions)
    written = {name: value for name, value in after.items() if value != current[name]}
    if after["status"] == "inactive":
        return {**written, "next_run_at": None}
    if written.keys() & {"cron", "timezone", "status"} or before.next_run_at is None:
        return {**written, "next_run_at": _next(cron, now), "last_error": None}
    return written


def _next(cron: Cron, now: datetime) -> datetime:
    found = cron.after(now)
    if found is None:
        raise InvalidSchedule("cron", "it is not due within fifty years")
    return found


def _check_text(name: str, value: Any, longest: int) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise InvalidSchedule(name, f"it is a text of 1 to {longest} characters")
    if not value.isprintable():
        raise InvalidSchedule(name, "it has characters that cannot be shown")


def _check_choice(name: str, value: Any, known: Collection[str]) -> None:
    if value not in known:
        raise InvalidSchedule(name, f"{value!r} is none of {', '.join(known)}")


def _check_payload(payload: Any) -> None:
    try:
        encode(payload, "payload")
    except ValidationFailed as error:
        raise InvalidSchedule("payload", error.message) from None


def _url_problem(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return f"{url!r} is not a URL"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "a URL begins with http:// or https:// and names a host"
    if parts.username is not None or parts.password is not None:
        return "a URL carries no user and no password; they would be stored and shown"
    if port == 0 or not url.isascii() or any(c.isspace() for c in url):
        return f"{url!r} is not a URL; write other characters as %.."
    return None
