"""What migration files import: `from maniflex.migrations import op, types`.

The functions of a file are not run against a database: they are called once to learn their operations, which
`maniflex.schema` then carries out one by one. Alembic reads the files and their chain, keeps
`alembic_version` and writes the plain DDL.
"""

from maniflex.schema import op as op
from maniflex.schema import types as types
from maniflex.schema.target import Irreversible as Irreversible
from maniflex.schema.target import MigrationError as MigrationError
from maniflex.schema.types import by_database as by_database
from maniflex.schema.types import new_id as new_id
from maniflex.schema.types import now as now

__all__ = ["Irreversible", "MigrationError", "by_database", "new_id", "now", "op", "types"]
