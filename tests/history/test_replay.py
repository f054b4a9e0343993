"""H4: whatever is done, in whatever order, its diffs replayed give the table, and the past is as it was."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from typing import Any

from maniflex.errors import RequestError
from tests.history.test_as_of import text
from tests.history.world import Customer, Invoice, Line, World, a_world

OPERATIONS = 2000
INSTANTS = 200  # at which lists are taken, and asked for afterwards
UNTOLD = {"id", "created_at", "updated_at", "deleted_at"}


class Actor:
    """Does one thing after another, by every way there is."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world = world
        self.dice = dice
        self.done: Counter[str] = Counter()
        self.ids: dict[Any, list[str]] = {Customer: [], Invoice: [], Line: []}
        self.taken: list[tuple[str, Any]] = []  # where to ask for a past list, and the list taken then

    def any(self, model: Any) -> str:
        return self.dice.choice(self.ids[model][-8:] or ["none"])

    async def act(self) -> None:
        way = self.dice.choice([name for name in dir(self) if name.startswith("do_")])
        try:
            await getattr(self, way)()
            self.done[way] += 1
        except RequestError:
            self.done["refused"] += 1
        self.world.tick(self.dice.choice((0, 0.001, 1)))

    async def do_create(self) -> None:
        answer = await self.world.http.post(
            "/hist_invoices",
            json={"number": str(self.dice.random()), "amount": str(self.dice.randint(0, 3)), "data": [1]},
        )
        self.ids[Invoice].append(answer.json()["data"]["id"])

    async def do_create_others(self) -> None:
        db = self.world.server.db
        self.ids[Customer].append((await db(Customer).create(name="c")).id)
        for _ in range(3):
            line = await db(Line).create(invoice_id=self.any(Invoice), text=str(self.dice.random()))
            self.ids[Line].append(line.id)

    async def do_patch(self) -> None:
        body: dict[str, Any] = {
            "amount": self.dice.choice(("1", "1.0", "2.50")),
            "stars": self.dice.randint(0, 2),
        }
        if self.dice.random() < 0.3:
            body = {"password": str(self.dice.random())}
        await self.world.http.patch(f"/hist_invoices/{self.any(Invoice)}", json=body)

    async def do_update(self) -> None:
        with self.world.server.acting_as("ada"):
            await self.world.server.db(Invoice).update(
                self.any(Invoice), customer_id=self.any(Customer), rate=self.dice.random()
            )

    async def do_increment(self) -> None:
        await self.world.server.db(Invoice).increment(self.any(Invoice), stars=1)
        await self.world.server.db(Invoice).increment(self.any(Invoice), amount=1)

    async def do_delete(self) -> None:
        await self.world.http.delete(f"/hist_invoices/{self.any(Invoice)}")

    async def do_delete_line(self) -> None:
        await self.world.server.db(Line).delete(self.any(Line))

    async def do_delete_customer(self) -> None:
        await self.world.server.db(Customer).delete(self.any(Customer))

    async def do_restore(self) -> None:
        await self.world.server.db(Invoice).restore(self.any(Invoice))

    async def do_roll_back(self) -> None:
        try:
            async with self.world.server.transaction():
                await self.world.server.db(Invoice).update(self.any(Invoice), number="never")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass

    async def do_many(self) -> None:
        async with self.world.server.transaction():
            for _ in range(3):
                await self.world.server.db(Line).update(self.any(Line), text=str(self.dice.random()))

    async def do_go_back(self) -> None:
        await self.world.http.post(f"/hist_invoices/{self.any(Invoice)}/history/1/restore")

    async def do_schedule_and_sweep(self) -> None:
        now = self.world.clock.now()
        field = self.dice.choice(("publish_at", "expires_at"))
        await self.world.server.db(Invoice).update(self.any(Invoice), {field: now})
        self.world.tick()
        await self.world.server.scheduled.runner().sweep()

    async def look(self) -> None:
        """Take a list as it is at this instant."""
        self.world.tick()
        table = self.dice.choice(("hist_invoices", "hist_lines", "hist_customers"))
        moment = text(self.world.clock.now())
        answer = await self.world.http.get(f"/{table}?limit=100&sort=created_at:desc")
        self.taken.append((f"/{table}?limit=100&sort=created_at:desc&as_of={moment}", answer.json()))
        self.world.tick()


def replayed(versions: list[Any]) -> dict[str, Any]:
    """The values that the diffs of a record lead to, checked on the way.

    A deleted row keeps its values and may still be written: `set_null` reaches it.
    """
    values: dict[str, Any] = {}
    for row in versions:
        olds, news = (
            {name: change[side] for name, change in row.diff.items() if change[side] is not None}
            for side in ("old", "new")
        )
        if row.operation in ("create", "restore"):
            assert olds == {}
            assert values == {} or _plain(values) == _plain(news)
            values = news
            continue
        known = {name: values[name] for name in row.diff if name in values}
        assert _plain(known) == _plain(olds), (row.record_id, row.version)
        if row.operation == "delete":
            assert news == {}
            assert olds.keys() == values.keys()
        else:
            values = {name: value for name, value in values.items() if name not in row.diff} | news
    return values


async def test_diffs_give_the_rows_and_the_past_is_as_it_was(database_url: str, long_mode: bool) -> None:
    seed = random.randrange(2**32) if long_mode else 7
    print(f"seed {seed}")
    async with a_world(database_url) as world:
        actor = Actor(world, random.Random(seed))
        for number in range(OPERATIONS * (5 if long_mode else 1)):
            await actor.act()
            if number % (OPERATIONS // INSTANTS) == 0:
                await actor.look()
        assert min(actor.done.values()) > 0
        assert len(actor.done) > 12, actor.done
        for model in (Invoice, Line, Customer):
            rows = {record.id: record for record in await world.server.db(model).list()}
            by_record: dict[str, list[Any]] = {}
            for row in await world.server.db(f"{model.__name__}History").list(sorts="version"):
                by_record.setdefault(row.record_id, []).append(row)
            assert rows.keys() <= by_record.keys()
            for record_id, versions in by_record.items():
                assert [row.version for row in versions] == list(range(1, len(versions) + 1))
                moments = [row.timestamp for row in versions]
                assert moments == sorted(moments)
                values = replayed(versions)
                if record_id not in rows:
                    continue
                shown = (await world.http.get(f"/{_table(model)}/{record_id}")).json()["data"]
                expected = {n: v for n, v in shown.items() if v is not None and n not in UNTOLD}
                assert _plain(values) == _plain(expected)
        assert len(actor.taken) >= INSTANTS
        for url, taken in actor.taken:
            past = (await world.http.get(url)).json()
            assert _told(past["data"]) == _told(taken["data"]), url
            assert past["meta"]["total"] == taken["meta"]["total"]


def _table(model: Any) -> str:
    return str(model.__options__.table)


def _told(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the time of the last write, which may have changed nothing."""
    return [_plain({n: v for n, v in record.items() if n != "updated_at"}) for record in records]


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """With decimals by value: another spelling of one is no change."""
    return {n: Decimal(v) if n == "amount" else v for n, v in values.items()}
