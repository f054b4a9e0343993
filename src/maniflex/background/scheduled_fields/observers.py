"""Those a sweep calls: hooks after the commit, observers inside the transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from maniflex.db.cascade import deletion
from maniflex.db.port import Tx
from maniflex.model.field import FieldSchedule, ScheduledAction
from maniflex.model.meta import ModelMeta

OnDelete = Callable[[str, str], Awaitable[object] | object]
OnSetField = Callable[[str, str, str, Any], Awaitable[object] | object]


@dataclass(frozen=True, slots=True)
class SweepEvent:
    """The change of one batch; it has no actor, because no caller asked for it."""

    meta: ModelMeta
    schedule: FieldSchedule
    at: datetime
    before: Sequence[Mapping[str, Any]]  # attribute → value; JSON is text

    @property
    def after(self) -> Sequence[Mapping[str, Any] | None]:
        """The same records as they are now; None where one was removed."""
        match self.schedule.action:
            case ScheduledAction.HARD_DELETE:
                return [None] * len(self.before)
            case ScheduledAction.SOFT_DELETE:
                changes = deletion(self.meta, self.at)
            case ScheduledAction.ERASE if not self.schedule.erased_values:
                return [None] * len(self.before)
            case ScheduledAction.ERASE:
                changes = {**dict(self.schedule.erased_values), "updated_at": self.at}
            case ScheduledAction.SET_FIELD:
                changes = {self.schedule.target: self.schedule.to, "updated_at": self.at}
        return [{**row, **changes} for row in self.before]


Observer = Callable[[Tx, SweepEvent], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Subscribers:
    """The hooks and observers a sweep calls."""

    on_delete: Sequence[OnDelete] = ()
    on_set_field: Sequence[OnSetField] = ()
    observers: Sequence[Observer] = ()


# The report of a sweep: how many records it changed, skipped or failed on.


MOST_FAILURES = 100


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that went wrong: with one record, with a hook, or with a whole schedule (no id)."""

    model: str
    field: str
    id: str | None
    message: str


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The part of one model."""

    deleted: int = 0
    updated: int = 0
    skipped: int = 0
    failed: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one sweep."""

    deleted: int = 0
    updated: int = 0
    skipped: int = 0  # due, but not to be deleted or changed: the reason is in `errors`
    failed: int = 0  # how often something went wrong
    truncated: bool = False  # due records are left for the next sweep
    errors: tuple[Failure, ...] = ()  # the first hundred
    per_model: Mapping[str, ModelReport] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def changed(self) -> int:
        """Records that were deleted or updated."""
        return self.deleted + self.updated

    def with_deleted(self, counts: Mapping[str, int]) -> Report:
        """The report together with rows of further tables that were deleted, by model."""
        per_model = dict(self.per_model)
        for name, count in counts.items():
            part = per_model.get(name, ModelReport())
            per_model[name] = replace(part, deleted=part.deleted + count)
        deleted = self.deleted + sum(counts.values())
        return replace(self, deleted=deleted, per_model=MappingProxyType(per_model))

    def as_json(self) -> dict[str, Any]:
        """The report in plain types, as the result of a run has it."""
        whole = {
            name: getattr(self, name) for name in ("deleted", "updated", "skipped", "failed", "truncated")
        }
        models = {name: asdict(part) for name, part in self.per_model.items()}
        return {**whole, "errors": [asdict(failure) for failure in self.errors], "per_model": models}


class Tally:
    """Counts while a sweep goes on."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, Any]] = {}
        self._errors: list[Failure] = []

    def of(self, model: str) -> dict[str, Any]:
        """The counts of a model, to be added to."""
        if model not in self._models:
            self._models[model] = asdict(ModelReport())
        return self._models[model]

    def fail(self, failure: Failure) -> None:
        self.of(failure.model)["failed"] += 1
        if len(self._errors) < MOST_FAILURES:
            self._errors.append(failure)

    def report(self) -> Report:
        by_model = {name: ModelReport(**counts) for name, counts in self._models.items()}
        return Report(
            deleted=sum(part.deleted for part in by_model.values()),
            updated=sum(part.updated for part in by_model.values()),
            skipped=sum(part.skipped for part in by_model.values()),
            failed=sum(part.failed for part in by_model.values()),
            truncated=any(part.truncated for part in by_model.values()),
            errors=tuple(self._errors),
            per_model=MappingProxyType(by_model),
        )
