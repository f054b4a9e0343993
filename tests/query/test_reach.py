"""A guarded model is guarded wherever it shows: rows nobody may see change no answer at all.

Each world is asked the same questions before and after the hidden rows exist. Equal answers leave no
row, no count, no order and no difference between "not there" and "not yours" to learn from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from maniflex import Server
from tests.http.kit import data_of
from tests.query.reach_world import GUARDS, ME, SCOPES, Probe, World, furnished, open_to_all, writes


def called(guard: Callable[[Server], None]) -> str:
    return guard.__name__


async def what_hidden_rows_change(world: World, probes: Sequence[Probe]) -> list[tuple[Probe, Any, Any]]:
    """The probes that are answered otherwise once the hidden rows exist, with both answers."""
    before = [await world.ask(probe) for probe in probes]
    await world.hide()
    after = [await world.ask(probe) for probe in probes]
    return [(p, one, two) for p, one, two in zip(probes, before, after, strict=True) if one != two]


@pytest.mark.parametrize("guard", GUARDS, ids=called)
async def test_hidden_rows_change_no_answer(database_url: str, guard: Callable[[Server], None]) -> None:
    async with furnished(database_url, guard) as world:
        probes = [*world.some_reads(GUARDS.index(guard)), *writes()]
        told = await what_hidden_rows_change(world, probes)

    assert told == []
    assert len(probes) * len(GUARDS) * 2 > 2_000  # with all guards, on both databases


@pytest.mark.long
@pytest.mark.parametrize("guard", GUARDS, ids=called)
async def test_hidden_rows_change_no_answer_of_all(
    database_url: str, guard: Callable[[Server], None]
) -> None:
    async with furnished(database_url, guard) as world:
        assert await what_hidden_rows_change(world, [*world.reads(), *writes()]) == []


async def test_without_a_guard_most_answers_tell_of_the_rows(database_url: str) -> None:
    async with furnished(database_url, open_to_all) as world:
        probes = world.some_reads()
        told = await what_hidden_rows_change(world, probes)
        statuses = {(await world.ask(probe))[0] for probe in probes}

    assert len(told) > len(probes) / 2
    assert statuses <= {200, 400, 404}


@pytest.mark.parametrize("guard", GUARDS, ids=called)
async def test_a_lookup_table_and_open_models_stay_usable(
    database_url: str, guard: Callable[[Server], None]
) -> None:
    async with furnished(database_url, guard) as world:
        await world.hide()
        for path in ("regions", "regions?include=people", "people?filter=region.name:eq:north", "notes"):
            assert data_of(await world.http.get(f"/api/{path}", headers=ME))
        data_of(await world.http.post("/api/regions", json={"name": "east"}, headers=ME), 201)
        data_of(await world.http.patch("/api/people/ann", json={"region_id": "south"}, headers=ME))


@pytest.mark.parametrize("guard", SCOPES, ids=called)
async def test_ones_own_rows_show_by_every_way(database_url: str, guard: Callable[[Server], None]) -> None:
    async with furnished(database_url, guard) as world:
        await world.hide()

        async def asked(path: str) -> list[dict[str, object]]:
            rows: list[dict[str, object]] = data_of(await world.http.get(f"/api/{path}", headers=ME))
            return rows

        [ann] = await asked("people?include=secrets&filter=secrets.code:eq:m-mine")
        [gold] = await asked("badges?include=secrets&filter=secrets.code:not_null")
        notes = await asked("notes?sort=secret.code:desc,id&include=secret")
        hits = await asked("search?q=mine")

    assert [s["code"] for s in ann["secrets"]] == ["m-mine", "q-mine"]  # type: ignore[attr-defined]  # JSON
    assert (gold["name"], len(gold["secrets"])) == ("gold", 2)  # type: ignore[arg-type]  # JSON
    assert [n["id"] for n in notes] == ["n2", "n1", "n0", "n3", "n4"]
    assert ["secret" in n for n in notes] == [True, True, False, False, False]
    assert {hit["id"] for hit in hits} == {"s-own-0", "s-own-1"}
