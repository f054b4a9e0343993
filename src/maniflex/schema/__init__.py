"""Schemas of databases: read, compared with models and changed, by the start and by migration files alike.

`differences.py` says how a database differs from the models. What removes a difference is an operation; a
plan turns it into statements of one database, and `apply.py` carries them out. `maniflex.migrations` is the
address that files import.
"""

import logging

# Alembic tells of its own plug-ins when it is imported, which a server does at its start. Before that, so.
logging.getLogger("alembic").setLevel(logging.WARNING)
