"""The statements of docs/operate/databases.md, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.kit.schema import kind, model, refused, run_advice, warnings
from tests.kit.servers import started

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "databases.md"


def recipe(name: str) -> str:
    found = re.search(rf"<!-- sql: {name} -->\n```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None, name
    return "; ".join(statement.strip() for statement in found[1].strip().rstrip(";").split(";\n"))


async def test_a_column_is_renamed_with_its_values(database_url: str, caplog: Any) -> None:
    before, after = (model("Item", "items", {name: str}) for name in ("title", "headline"))
    async with started(database_url, before) as server:
        old = await server.db(before).create(title="kept")
    assert 'field(column="title")' in await refused(database_url, after)

    await run_advice(database_url, recipe("rename"))

    caplog.clear()
    async with started(database_url, after) as server:
        read: Any = await server.db(after).read(old.id)
    assert read.headline == "kept"
    assert warnings(caplog) == []


async def test_a_column_is_converted_with_its_values(database_url: str, caplog: Any) -> None:
    before, after = (model("Item", "items", {"size": type_}) for type_ in (str, int))
    async with started(database_url, before) as server:
        old = await server.db(before).create(size="42")
    assert "convert the column in a migration" in await refused(database_url, after)

    await run_advice(database_url, recipe(f"convert {kind(database_url)}"))

    caplog.clear()
    async with started(database_url, after) as server:
        read: Any = await server.db(after).read(old.id)
        await server.db(after).create(size=7)
        assert await server.db(after).count([("size", "gt", 10)]) == 1
    assert read.size == 42
    assert warnings(caplog) == []
