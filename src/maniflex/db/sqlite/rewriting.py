"""Write a SQLite file anew, so that nothing of what was deleted is left in it or in its log."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from datetime import timedelta

from maniflex.db.sqlite.connect import MEMORY, ConnectionSource

_PATIENCE = timedelta(seconds=30)


async def rewrite_file(path: str, *, vacuum: bool) -> bool:
    """Fold the log into the file, after writing it anew with `vacuum`; False if others kept it busy."""
    return path == MEMORY or await asyncio.to_thread(_rewrite, path, vacuum)


def _rewrite(path: str, vacuum: bool) -> bool:
    connection = ConnectionSource(path, "FULL", _PATIENCE, 16).writer()
    try:
        if vacuum:
            connection.execute("VACUUM")
        [is_busy, _, _] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()


def file_size(path: str) -> int:
    """The bytes of the file; none of one in memory."""
    return 0 if path == MEMORY else os.path.getsize(path)
