"""How SQLite goes about what a request asks of it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from maniflex import Server
from maniflex.sql.statement import Sql


async def plans_of(
    server: Server, http: httpx.AsyncClient, path: str, headers: dict[str, str], patch: pytest.MonkeyPatch
) -> str:
    """The plans of the statements that read for this request."""
    adapter: Any = server._seal().runtime.adapter
    asked: list[Sql] = []

    def noting(read: Any) -> Any:
        async def noted(self: Any, sql: Sql, *rest: Any, **options: Any) -> Any:
            asked.append(sql)
            return await read(self, sql, *rest, **options)

        return noted

    with patch.context() as patched:
        for name in ("fetch", "fetch_one"):
            patched.setattr(type(adapter), name, noting(getattr(type(adapter), name)))
        assert (await http.get(path, headers=headers)).status_code == 200
    assert asked
    found = [await adapter.fetch(Sql(f"EXPLAIN QUERY PLAN {sql.text}", sql.params)) for sql in asked]
    return "; ".join(str(step[3]) for plan in found for step in plan)
