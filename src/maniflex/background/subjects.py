"""Whom runs and messages are about: `subjects=` of `submit` and `enqueue`, kept beside their tables.

The rows are in a table of their own, so that those of runs and messages, and their partitions, stay as they
are. There is one only where a model says with `subject=` whose data its records are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from maniflex._ids import new_id
from maniflex.db.port import Executor
from maniflex.db.store import Store
from maniflex.errors import ValidationFailed
from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.model.meta import Index
from maniflex.sql.write import insert_many

AT_ONCE = 500
WorkKind = Literal["run", "message"]


class WorkSubject(
    Model,
    table="work_subject",
    headless=True,
    indices=[Index(("subject", "kind", "work_id"), unique=True), Index(("work_id",))],
):
    """A person that a run or a message is about, as `subjects=` said when it was stored."""

    subject: str = field(relation=None)
    kind: WorkKind
    work_id: str = field(relation=None)


def read_subjects(subjects: Any, stores: Mapping[type[Model], Store]) -> Sequence[str]:
    """The ids of persons, each once; refused where nothing could be erased by them."""
    names = [subjects] if isinstance(subjects, str) else list(subjects)
    if not all(isinstance(name, str) and name for name in names):
        raise _refusal("are ids of persons, which are texts")
    if names and WorkSubject not in stores:
        raise _refusal("mean nothing where no model says with subject= whose data its records are")
    return list(dict.fromkeys(names))


def _refusal(message: str) -> ValidationFailed:
    return ValidationFailed(f"subjects {message}", [{"field": "subjects", "message": message}])


async def note_subjects(
    run: Executor, store: Store, kind: WorkKind, ids: Iterable[str], subjects: Sequence[str], now: datetime
) -> None:
    """Note that these runs or messages are about these persons."""
    rows = [
        {
            "id": new_id(),
            "subject": subject,
            "kind": kind,
            "work_id": work_id,
            "created_at": now,
            "updated_at": now,
        }
        for work_id in ids
        for subject in subjects
    ]
    for start in range(0, len(rows), AT_ONCE):
        await run.execute(insert_many(store.sql, rows[start : start + AT_ONCE]))
