"""Random graphs of records: a delete leaves what a plain Python model of the rules leaves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field as member

import pytest

from maniflex import DeleteRestricted, Model, NotFound, Server, WithDeletedAt, field
from maniflex.db import cascade as removal
from maniflex.testing import client


class Red(Model):
    a_id: str | None = field(relation="Red", on_delete="cascade")
    b_id: str | None = field(relation="Blue", on_delete="set_null")
    c_id: str | None = field(relation="Green", on_delete="restrict")


class Blue(Model, WithDeletedAt):
    a_id: str | None = field(relation="Red", on_delete="cascade")
    b_id: str | None = field(relation="Blue", on_delete="restrict")
    c_id: str | None = field(relation="Green", on_delete="cascade")


class Green(Model, WithDeletedAt):
    a_id: str | None = field(relation="Red")
    b_id: str | None = field(relation="Blue", on_delete="cascade")
    c_id: str | None = field(relation="Green", on_delete="set_null")


MODELS: dict[str, type[Model]] = {"Red": Red, "Blue": Blue, "Green": Green}
TARGETS = {"a_id": "Red", "b_id": "Blue", "c_id": "Green"}
RULES = {
    ("Red", "a_id"): "cascade",
    ("Red", "b_id"): "set_null",
    ("Red", "c_id"): "restrict",
    ("Blue", "a_id"): "cascade",
    ("Blue", "b_id"): "restrict",
    ("Blue", "c_id"): "cascade",
    ("Green", "b_id"): "cascade",
    ("Green", "c_id"): "set_null",
}


@dataclass
class World:
    """The rules, on dictionaries: live rows by model and id."""

    rows: dict[str, dict[str, dict[str, str | None]]] = member(
        default_factory=lambda: {n: {} for n in MODELS}
    )

    def referring(self, model: str, gone: set[tuple[str, str]], rule: str) -> Iterator[tuple[str, str, str]]:
        for (name, key), action in RULES.items():
            if action == rule and TARGETS[key] == model:
                for row_id, row in self.rows[name].items():
                    if (model, row[key]) in gone:
                        yield name, row_id, key

    def delete(self, model: str, row_id: str) -> bool:
        gone = {(model, row_id)}
        while True:
            found = {(n, i) for m in MODELS for n, i, _ in self.referring(m, gone, "cascade")} - gone
            if not found:
                break
            gone |= found
        held = {(n, i) for m in MODELS for n, i, _ in self.referring(m, gone, "restrict")}
        if held - gone:
            return False
        for name, other, key in [hit for m in MODELS for hit in self.referring(m, gone, "set_null")]:
            self.rows[name][other][key] = None
        for name, other in gone:
            del self.rows[name][other]
        return True


async def stored(server: Server) -> dict[str, dict[str, dict[str, str | None]]]:
    return {
        name: {row.id: {key: getattr(row, key) for key in TARGETS} for row in await server.db(cls).list()}
        for name, cls in MODELS.items()
    }


@pytest.mark.parametrize("seed", range(6))
async def test_random_graphs_lose_what_the_rules_say(
    database_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(removal, "BATCH", dice.choice([1, 2, 500]))
    server, world = Server(), World()
    server.register(*MODELS.values())
    async with client(server, database=database_url):
        for number in range(60):
            name = dice.choice([*MODELS])
            row: dict[str, str | None] = {}
            for key, target in TARGETS.items():
                there = [*world.rows[target]]
                row[key] = dice.choice(there) if there and dice.random() < 0.25 else None
            made = await server.db(MODELS[name]).create(id=f"{name}-{number:03}", **row)
            world.rows[name][made.id] = row
        for name, rows in world.rows.items():  # and some back, so that there are circles
            for row_id in dice.sample(sorted(rows), len(rows) // 6):
                key = dice.choice([*TARGETS])
                there = sorted(world.rows[TARGETS[key]])
                rows[row_id][key] = dice.choice(there)
                await server.db(MODELS[name]).update(row_id, **{key: rows[row_id][key]})

        every = [(name, row_id) for name, rows in world.rows.items() for row_id in rows]
        for name, row_id in dice.sample(every, 40):
            if row_id not in world.rows[name]:
                with pytest.raises(NotFound):
                    await server.db(MODELS[name]).delete(row_id)
            elif world.delete(name, row_id):
                await server.db(MODELS[name]).delete(row_id)
            else:
                with pytest.raises(DeleteRestricted):
                    await server.db(MODELS[name]).delete(row_id)
            assert await stored(server) == world.rows
