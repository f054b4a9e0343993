"""How tables and indexes are named in statements that a message advises.

People run them in a session of their own, which looks for tables in "public": a statement for a table
elsewhere names its schema, or it would change a table of the same name in another one.
"""

from __future__ import annotations

from typing import Any

from maniflex.sql.model import ModelSql
from maniflex.sql.tables import quote, sa_dialect

_DEFAULT = "public"


def advised_table(model: ModelSql) -> str:
    """The table of the model as it stands in advised statements."""
    return advised_name(model, model.table.name)


def advised_name(model: ModelSql, name: str) -> str:
    """A table or an index beside the model's table as it stands in advised statements."""
    schema = _schema(model)
    return quote(name, model.dialect) if schema is None else f'"{schema}".{quote(name, model.dialect)}'


def advised_ddl(model: ModelSql, element: Any) -> str:
    """A statement of SQLAlchemy as advised, on one line."""
    schema = _schema(model)
    where: dict[str, Any] = (
        {} if schema is None else {"schema_translate_map": {None: schema}, "render_schema_translate": True}
    )
    return " ".join(str(element.compile(dialect=sa_dialect(model.dialect), **where)).split())


def _schema(model: ModelSql) -> str | None:
    return None if model.schema == _DEFAULT else model.schema
