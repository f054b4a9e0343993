"""The history of a versioned model as a model of its own: `Invoice` has `InvoiceHistory`.

Its class is made when the server is sealed, once for each parent. Its rows are written by the write seam
(`db/history.py`) and by nothing else; the record they tell about is their relation `record`.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, cast

from pydantic import JsonValue

from maniflex._names import pluralise, singular, table_name
from maniflex.model.base import Model, ModelType
from maniflex.model.class_body import utc_now
from maniflex.model.field import field
from maniflex.model.meta import Index, ModelMeta, ModelOptions, TableRules

RECORD = "record"  # the relation that leads to the record


class HistoryOperation(StrEnum):
    """What a row of a history tells of."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    RESTORE = "restore"
    BASELINE = "baseline"  # the state that the first change of a record from before versioning found


class HistoryRow(Model, abstract=True):
    """One version of a record: what changed, by whom, and the record as it was then."""

    __table_rules__: ClassVar = TableRules(defaults=("created_at", "updated_at"))
    __history_of__: ClassVar[type[Model] | None] = None
    __append_only__: ClassVar = True

    record_id: str = field(filterable=True, relation=None)
    version: int = field(filterable=True, sortable=True)
    operation: HistoryOperation = field(filterable=True)
    actor_id: str | None = field(default=None, filterable=True, relation=None)
    tenant_id: str | None = field(default=None, relation=None)  # of the actor
    timestamp: datetime = field(filterable=True, sortable=True)
    request_id: str | None = field(default=None, filterable=True, relation=None)
    source: str = field(filterable=True)
    reason: str | None = field(default=None)
    diff: dict[str, JsonValue] = field(default_factory=dict)
    snapshot: dict[str, JsonValue] | None = field(default=None)
    # What scopes compare and the snapshot does not tell (`sql/bindings.py`); never shown.
    binding: dict[str, JsonValue] | None = field(default=None, hidden=True)
    # Under which names and types it was written (`sql/history_layouts.py`); none before that was noted.
    schema_version: int | None = field(default=None, hidden=True)
    subject_id: str | None = field(default=None, hidden=True, relation=None)
    erased_at: datetime | None = field(default=None)
    # The time of the row itself; what clients look for is `timestamp`.
    created_at: datetime = field(default_factory=utc_now, hidden=True, filterable=False, sortable=False)
    updated_at: datetime = field(default_factory=utc_now, hidden=True, filterable=False, sortable=False)


def history_model(parent: type[Model]) -> type[HistoryRow]:
    """The class of the history rows of a model, always the same one."""
    cls: type[HistoryRow] | None = vars(parent).get("__history_model__")
    if cls is None:
        name = f"{parent.__name__}History"
        body: dict[str, Any] = {
            "__module__": __name__,
            "__qualname__": name,
            "__doc__": f"One version of a {parent.__name__}: what changed, by whom, and how it was then.",
            "__annotations__": {"record_id": str, "__history_of__": ClassVar[Any]},
            "__history_of__": parent,
            "record_id": field(filterable=True, relation=parent.__name__),
        }
        cls = cast(type[HistoryRow], ModelType(name, (HistoryRow,), body))
        parent.__history_model__ = cls  # type: ignore[attr-defined]  # so that it ends with its parent
    return cls


def history_options(parent: type[Model], options: ModelOptions) -> ModelOptions:
    """The options the history of a model is registered with; its routes are those of `features/history`."""
    old = singular(options.renamed_from) if options.renamed_from and not options.history_table else None
    return ModelOptions(
        table=options.history_table or table_name(f"{parent.__name__}History"),
        renamed_from=None if old is None else pluralise(f"{old}_history"),  # that of the class it was
        database=options.database,
        headless=True,
        limits=options.limits,
        indices=[
            Index(("record_id", "version"), unique=True),
            Index(("actor_id", "timestamp")),
        ],
    )


def is_versioned(options: ModelOptions) -> bool:
    """Whether a model keeps its history."""
    return bool(options.versioned or options.versioned_diff_only)


def is_history(model: ModelMeta) -> bool:
    """Whether the model is the history of another one."""
    return issubclass(model.cls, HistoryRow)


# The names under which stored JSON may have the values of secret fields.


def secret_names(meta: ModelMeta) -> frozenset[str]:
    """Every name that a secret field has, or had before it got another alias; not one that is shown."""
    names = {name for f in meta.fields if f.secret for name in (f.api, f.name, f.column)}
    return frozenset(names - {f.api for f in meta.fields if not f.secret})
