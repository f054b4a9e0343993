"""SQLite: the adapter, its writing and reading threads."""

from maniflex.db.sqlite.adapter import SqliteAdapter

__all__ = ["SqliteAdapter"]
