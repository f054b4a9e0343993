"""Reviewed changes of the schema: files that run on both databases, written, checked and applied here.

A file says `from maniflex.migrations import op, types`. Its functions are not run against a database: they
are called once to learn their operations, which are then carried out one by one (`apply.py`). Alembic reads
the files and their chain, keeps `alembic_version` and writes the plain DDL.
"""

import logging

# It tells of its own plug-ins when it is imported, which a server does at its start. Before the imports, so.
logging.getLogger("alembic").setLevel(logging.WARNING)

# ruff: noqa: E402
from maniflex.migrations import op as op
from maniflex.migrations import types as types
from maniflex.migrations.target import Irreversible as Irreversible
from maniflex.migrations.target import MigrationError as MigrationError
from maniflex.migrations.types import by_database as by_database
from maniflex.migrations.types import new_id as new_id
from maniflex.migrations.types import now as now

__all__ = ["Irreversible", "MigrationError", "by_database", "new_id", "now", "op", "types"]
