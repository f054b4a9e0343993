"""What callers learn of failures: the code, and the text that a handler wrote for them.

A handler speaks to the caller with `Fatal` and `run.retry_in`. The text of any other exception may quote a
driver, a path or another caller's data: operators alone read it, together with stack traces and the names
of workers.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from maniflex.background.runs.access import CODES_WITH_TEXT
from maniflex.background.runs.outcomes import NO_HANDLER
from maniflex.model.meta import FieldMeta
from maniflex.pipeline.context import Context

_CODES = ("lease_expired", NO_HANDLER)  # what the engine writes in place of a text
_OF_WORKERS = ("worker", "trace")


def visible_text(text: Any, code: Any) -> str | None:
    """The text of a failure with this code if callers may read it; otherwise the code, if there is one."""
    if text in _CODES or code in CODES_WITH_TEXT:
        return str(text) if text is not None else None
    return str(code) if text is not None and isinstance(code, str) else None


def hide_texts_of_run(record: dict[str, Any]) -> None:
    """Leave of a run's failure what its owner may know."""
    error = record.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(error, dict):
        names = ("code", "message", "attempt") if code in CODES_WITH_TEXT else ("code", "attempt")
        record["error"] = {name: error[name] for name in names if name in error}
    if "last_error" in record:
        record["last_error"] = visible_text(record["last_error"], code)


def hide_texts_of_event(record: dict[str, Any]) -> None:
    """Leave of what happened to a run what its owner may know."""
    data = record.get("data")
    if not isinstance(data, dict):
        return
    visible = {name: value for name, value in data.items() if name not in _OF_WORKERS}
    if "error" in visible:
        visible["error"] = visible_text(visible["error"], visible.get("code"))
    record["data"] = visible


def hide_text_of_job(record: dict[str, Any]) -> None:
    """Leave of a job's failure what its owner may know."""
    if "error" in record:
        record["error"] = visible_text(record["error"], record.get("error_code"))


def select_deciding_fields(ctx: Context, asked: Collection[str], *deciding: str) -> None:
    """Add the `deciding` fields to a selection that has one of the `asked` fields, which depend on them."""
    select = ctx.query.select
    names = [] if select is None else [field.name for field in select]
    if select is None or not any(name in names for name in asked):
        return
    fields = (ctx.query.model.field(name) for name in deciding if name not in names)
    extra_fields: list[FieldMeta] = [field for field in fields if field is not None]
    ctx.query.select = (*select, *extra_fields)
    ctx.state.beside = (*ctx.state.get("beside", ()), *(field.name for field in extra_fields))


def drop_added_fields(ctx: Context, record: dict[str, Any]) -> None:
    """Remove the fields that `select_deciding_fields` added."""
    for name in ctx.state.get("beside", ()):
        record.pop(name, None)
