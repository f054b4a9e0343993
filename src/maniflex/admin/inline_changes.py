"""Rows of a form that are stored with its record, and what happens to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from maniflex.admin.pickers import Picker
from maniflex.admin.site import ModelSite
from maniflex.model.meta import FieldMeta


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InlineTable:
    """Records of another model that the form of a record shows as rows."""

    name: str  # of the relation
    child: ModelSite
    key: FieldMeta  # holds the id of the record they belong to
    fields: Sequence[FieldMeta]
    max_rows: int
    pickers: Mapping[str, Picker] = field(default_factory=dict)  # of the records that rows refer to
    stamped: frozenset[str] = frozenset()  # fields that a new row gets from scope rules
    kept: frozenset[str] = frozenset()  # fields of rows that are there, which scope rules keep as they are

    def place(self, index: int) -> str:
        """What the names of a row's controls begin with."""
        return f"inline.{self.name}.{index}"


class InlineStep(IntEnum):
    """What happens to a row, in the order in which it does: a removed one makes room for unique values."""

    DELETE = 0
    UPDATE = 1
    CREATE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineChange:
    """A row that is stored, changed or removed."""

    step: InlineStep
    table: InlineTable
    place: str
    id: str
    values: Mapping[str, Any]
    base_values: Mapping[str, Any]

    @property
    def is_offered(self) -> bool:
        """Whether the panel of the row's model lets this be done; the API says what the person may."""
        child = self.table.child
        match self.step:
            case InlineStep.CREATE:
                return child.can_create
            case InlineStep.UPDATE:
                return child.can_edit
            case InlineStep.DELETE:
                return child.can_delete
