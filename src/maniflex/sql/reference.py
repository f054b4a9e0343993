"""Keys of a row about to be written: the rows they name must be there, alive and inside the scope.

The check is part of the statement that writes, so nothing can come between the two. On Postgres the
named row is held against deletion until the transaction ends; on SQLite there is no other writer meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from maniflex.sql.locks import lock_rows
from maniflex.sql.operators import Condition
from maniflex.sql.statement import by_dialect
from maniflex.sql.where import Scope, scope_conditions

if TYPE_CHECKING:
    from maniflex.sql.model import ModelSql

_REF = "$ref$"  # no attribute can be called like this


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A key, by its attribute, and the model whose row it names."""

    key: str
    target: ModelSql


def shape_of(references: Sequence[Reference]) -> tuple[str, ...]:
    return tuple([reference.key for reference in references])


def key_values(references: Sequence[Reference], row: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the conditions."""
    return {_REF + reference.key: row[reference.key] for reference in references}


def key_parameter(reference: Reference) -> sa.BindParameter[str]:
    return sa.bindparam(_REF + reference.key, type_=sa.Text())


def named_rows(references: Sequence[Reference], scope: Scope) -> list[Condition]:
    """For each key, that the row it names is there to be referred to."""
    return [_named_row(place, reference, scope) for place, reference in enumerate(references)]


def _named_row(place: int, reference: Reference, scope: Scope) -> Condition:
    target = reference.target
    table = target.table.alias()
    rows = sa.select(table.c[target.id.name]).where(
        table.c[target.id.name] == key_parameter(reference),
        *target.live(table),
        *scope_conditions(target, table, scope),
    )
    locked_rows = lock_rows(rows, target.dialect, read=True, key_share=True).cte(f"ref${place}")
    exists = sa.exists(sa.select(sa.literal_column("1")).select_from(locked_rows))
    return by_dialect(target.dialect, sqlite=sa.exists(rows), postgres=exists)
