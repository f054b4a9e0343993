"""All rows of a table in small pages, deleted ones too: for code that looks at every record there is."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from maniflex.sql.model import ModelSql
from maniflex.sql.operators import list_value, one_of
from maniflex.sql.statement import Sql
from maniflex.sql.statement_cache import Compiled, compile_statement

_AFTER = "$after"
_IDS = "$ids"
_MOST = "$most"


def rows_behind(model: ModelSql, after: str, most: int) -> Sql:
    """The first rows whose id comes behind `after`, in the order of ids."""
    return model.shapes.get(("rows_behind",), _rows_behind, model).bind({_AFTER: after, _MOST: most})


def _rows_behind(model: ModelSql) -> Compiled:
    statement = sa.select(*model.columns).where(model.id > sa.bindparam(_AFTER, type_=model.id.type))
    statement = statement.order_by(model.id).limit(sa.bindparam(_MOST, type_=sa.Integer()))
    statement = statement.offset(sa.literal_column("0"))
    return compile_statement(statement, model.dialect)


def rows_among(model: ModelSql, ids: Sequence[str]) -> Sql:
    """The rows of these ids, not locked."""
    statement = model.shapes.get(("rows_among",), _rows_among, model)
    return statement.bind({_IDS: list_value(model.dialect, ids)})


def _rows_among(model: ModelSql) -> Compiled:
    statement = sa.select(*model.columns).where(one_of(model.dialect, model.id, _IDS))
    return compile_statement(statement, model.dialect)
