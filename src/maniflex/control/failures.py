"""What callers learn of failures: the code, and the text that a handler wrote for them.

A handler speaks to whoever waits with `Fatal` and `run.retry_in`. The text of any other exception may quote a
driver, a path or another caller's data: operators alone read it, together with stack traces and the names of
workers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from maniflex.background.runs.access import CODES_WITH_TEXT
from maniflex.background.runs.executor import NO_HANDLER
from maniflex.model.meta import FieldMeta
from maniflex.pipeline.context import Context

_CODES = ("lease_expired", NO_HANDLER)  # what the engine writes in place of a text
_OF_WORKERS = ("worker", "trace")


def visible_text(text: Any, code: Any) -> str | None:
    """What is shown in place of the text of a failure with this code; without one, at most a code."""
    if text in _CODES or code in CODES_WITH_TEXT:
        return str(text) if text is not None else None
    return str(code) if text is not None and isinstance(code, str) else None


def hide_texts_of_run(record: dict[str, Any]) -> None:
    """Leave of a run's failure what its owner may know."""
    error = record.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(error, dict):
        shown = ("code", "message", "attempt") if code in CODES_WITH_TEXT else ("code", "attempt")
        record["error"] = {name: error[name] for name in shown if name in error}
    if "last_error" in record:
        record["last_error"] = visible_text(record["last_error"], code)


def hide_texts_of_event(record: dict[str, Any]) -> None:
    """Leave of what happened to a run what its owner may know."""
    data = record.get("data")
    if not isinstance(data, dict):
        return
    kept = {name: value for name, value in data.items() if name not in _OF_WORKERS}
    if "error" in kept:
        kept["error"] = visible_text(kept["error"], kept.get("code"))
    record["data"] = kept


def hide_text_of_job(record: dict[str, Any]) -> None:
    """Leave of a job's failure what its owner may know."""
    if "error" in record:
        record["error"] = visible_text(record["error"], record.get("error_code"))


def select_too(ctx: Context, asked: Collection[str], *deciding: str) -> None:
    """Have a selection that asks for a field bring those along that decide what is shown of it."""
    selected = ctx.query.select
    names = [] if selected is None else [field.name for field in selected]
    if selected is None or not any(name in names for name in asked):
        return
    fields = (ctx.query.model.field(name) for name in deciding if name not in names)
    added: list[FieldMeta] = [field for field in fields if field is not None]
    ctx.query.select = (*selected, *added)
    ctx.state.beside = (*ctx.state.get("beside", ()), *(field.name for field in added))


def drop_unasked(ctx: Context, record: dict[str, Any]) -> None:
    """Take the fields out again that nobody selected."""
    for name in ctx.state.get("beside", ()):
        record.pop(name, None)
