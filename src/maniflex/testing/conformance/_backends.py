"""What a `Backend` promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from maniflex.db.backend import (
    BackendCondition,
    BackendPage,
    BackendQuery,
    BackendSort,
    counts_records,
    operators_of,
)
from maniflex.errors import NotFound

Values = Mapping[str, Any]


class Backends:
    """An author overrides `backend`, empty and with a `create`, and `values`: a record for each number."""

    field: ClassVar[str] = "name"  # a text that differs from record to record

    @pytest.fixture
    def backend(self) -> Any:
        raise NotImplementedError("give the suite a backend")

    @pytest.fixture
    def values(self) -> Callable[[int], Values]:
        raise NotImplementedError("give the suite the values of its records")

    async def test_a_record_is_read_as_it_was_created(
        self, backend: Any, values: Callable[[int], Values]
    ) -> None:
        record = await backend.create(values(1))

        read = await backend.read(record["id"])

        assert (read["id"], read[self.field]) == (record["id"], values(1)[self.field])

    async def test_what_is_not_there_is_not_read(self, backend: Any) -> None:
        assert await find(backend, "00000000-0000-7000-8000-000000000000") is None

    async def test_a_list_has_the_records_of_its_conditions(
        self, backend: Any, values: Callable[[int], Values]
    ) -> None:
        ids = [(await backend.create(values(n)))["id"] for n in range(3)]
        conditions = [BackendCondition(self.field, "eq", values(1)[self.field])]
        if "in" in operators_of(backend):
            conditions.append(BackendCondition("id", "in", tuple(ids)))

        rows, total = await ask(backend, BackendQuery(conditions=tuple(conditions), limit=10))

        assert [row["id"] for row in rows] == [ids[1]]
        assert total == (1 if counts_records(backend) else None)

    async def test_conditions_all_hold(self, backend: Any, values: Callable[[int], Values]) -> None:
        for n in range(2):
            await backend.create(values(n))
        conditions = tuple(BackendCondition(self.field, "eq", values(n)[self.field]) for n in range(2))

        rows, total = await ask(backend, BackendQuery(conditions=conditions, limit=10))

        assert (rows, total or 0) == ([], 0)

    async def test_pages_have_every_record_once(self, backend: Any, values: Callable[[int], Values]) -> None:
        ids = {(await backend.create(values(n)))["id"] for n in range(5)}

        pages = [await ask(backend, BackendQuery(limit=2, offset=offset)) for offset in (0, 2, 4, 6)]

        assert [len(rows) for rows, _ in pages] == [2, 2, 1, 0]
        assert {row["id"] for rows, _ in pages for row in rows} == ids
        assert {total for _, total in pages} == {5 if counts_records(backend) else None}

    async def test_a_list_is_in_its_order(self, backend: Any, values: Callable[[int], Values]) -> None:
        if not getattr(backend, "sorts", True):
            pytest.skip("the backend does not sort")
        for n in (1, 0, 2):
            await backend.create(values(n))

        rows, _ = await ask(backend, BackendQuery(sorts=(BackendSort(self.field, True),), limit=10))

        names = [row[self.field] for row in rows]
        assert names == sorted(names, reverse=True)

    async def test_an_update_changes_what_it_names(
        self, backend: Any, values: Callable[[int], Values]
    ) -> None:
        if not hasattr(backend, "update"):
            pytest.skip("the backend has no update")
        first, second = [(await backend.create(values(n)))["id"] for n in range(2)]

        await backend.update(first, {self.field: values(7)[self.field]})

        assert (await backend.read(first))[self.field] == values(7)[self.field]
        assert (await backend.read(second))[self.field] == values(1)[self.field]

    async def test_a_deleted_record_is_gone(self, backend: Any, values: Callable[[int], Values]) -> None:
        if not hasattr(backend, "delete"):
            pytest.skip("the backend has no delete")
        record_id = (await backend.create(values(1)))["id"]

        await backend.delete(record_id)

        assert await find(backend, record_id) is None
        rows, total = await ask(backend, BackendQuery(limit=10))
        assert (rows, total or 0) == ([], 0)


async def find(backend: Any, record_id: str) -> Values | None:
    try:
        record: Values | None = await backend.read(record_id)
    except NotFound:
        return None
    return record


async def ask(backend: Any, query: BackendQuery) -> tuple[list[Values], int | None]:
    """The rows of a list and the total, whichever way the backend tells it; None where it counts nothing."""
    answer = await backend.list(query)
    page = answer if isinstance(answer, BackendPage) else BackendPage(answer)
    if page.total is not None or not counts_records(backend):
        return list(page.rows), page.total
    return list(page.rows), await backend.count(query)
