"""`lock_when` freezes a record in a state; `lock_scope` makes creates of one parent queue up."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from maniflex import Context, Model, Next, RecordLocked, Server, WithDeletedAt, field, with_transaction
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, offenders, serving, total


class Entry(Model):
    amount: int = field(default=0, min=0, lock_when={"state": "posted"})
    state: Literal["draft", "posted"] = field(default="draft", alias="entryState")


class Letter(Model, WithDeletedAt):
    text: str
    sealed: bool = field(default=False, lock_when={"sealed": True})


async def test_a_locked_record_can_be_read_but_neither_changed_nor_deleted(database_url: str) -> None:
    async with serving(database_url, Entry, Letter) as http:
        entry = await created(http, "/api/entries", amount=1, entryState="posted")
        letter = await created(http, "/api/letters", text="a", sealed=True)
        for path, record in (("/api/entries", entry), ("/api/letters", letter)):
            one = f"{path}/{record['id']}"
            for body in ({"amount": 2}, {"entryState": "draft"}, {"sealed": False}, {"text": "b"}, {}):
                error_of(await http.patch(one, json=body), 422, "RECORD_LOCKED")
            error_of(await http.delete(one), 422, "RECORD_LOCKED")
            assert data_of(await http.get(one)) == record


async def test_the_message_speaks_of_the_field_as_clients_know_it(sqlite_url: str) -> None:
    async with serving(sqlite_url, Entry) as http:
        entry = await created(http, "/api/entries", entryState="posted")
        refused = await http.patch(f"/api/entries/{entry['id']}", json={"amount": 2})
        assert "entryState" in error_of(refused, 422, "RECORD_LOCKED")["message"]


class Vault(Model):
    text: str = ""
    alarm: str = field(default="quiet", hidden=True, lock_when={"alarm": "ringing"})
    pin: str = field(default="open", writeonly=True, lock_when={"pin": "4711"})


@pytest.mark.parametrize("secret", ["alarm", "pin"])
async def test_a_lock_on_a_secret_tells_neither_its_name_nor_its_value(
    database_url: str, secret: str
) -> None:
    server = Server()
    server.register(Vault)
    async with client(server, database=database_url) as http:
        values = {"alarm": "ringing"} if secret == "alarm" else {"pin": "4711"}
        vault = await server.db(Vault).create(**values)
        one = f"/api/vaults/{vault.id}"
        for body in ({"text": "x"}, {}, {"text": 5}):
            refused = error_of(await http.patch(one, json=body), 422, "RECORD_LOCKED")
            assert refused["message"] == "the record is locked"
            assert secret not in str(refused)
        assert error_of(await http.delete(one), 422, "RECORD_LOCKED")["message"] == "the record is locked"


async def test_the_change_that_locks_it_is_allowed(database_url: str) -> None:
    async with serving(database_url, Entry) as http:
        entry = await created(http, "/api/entries", amount=1)
        one = f"/api/entries/{entry['id']}"
        posted = data_of(await http.patch(one, json={"amount": 5, "entryState": "posted"}))
        assert (posted["amount"], posted["entryState"]) == (5, "posted")
        error_of(await http.patch(one, json={"entryState": "draft"}), 422, "RECORD_LOCKED")


async def test_a_locked_record_says_so_before_it_says_what_else_is_wrong(database_url: str) -> None:
    async with serving(database_url, Entry) as http:
        locked = await created(http, "/api/entries", entryState="posted")
        free = await created(http, "/api/entries")
        wrong = {"amount": -1}
        error_of(await http.patch(f"/api/entries/{locked['id']}", json=wrong), 422, "RECORD_LOCKED")
        assert offenders(await http.patch(f"/api/entries/{free['id']}", json=wrong)) == {"amount": "min"}
        assert offenders(await http.patch("/api/entries/none", json=wrong)) == {"amount": "min"}
        error_of(await http.patch("/api/entries/none", json={"amount": 1}), 404, "NOT_FOUND")


async def test_the_lock_binds_code_as_well(database_url: str) -> None:
    server = Server()
    server.register(Entry)
    async with client(server, database=database_url):
        entry = await server.db(Entry).create(state="posted")
        with pytest.raises(RecordLocked):
            await server.db(Entry).update(entry.id, amount=5)
        with pytest.raises(RecordLocked):
            await server.db(Entry).increment(entry.id, amount=5)
        with pytest.raises(RecordLocked):
            await server.db(Entry).delete(entry.id)
        assert (await server.db(Entry).read(entry.id)).amount == 0


async def test_the_lock_sees_what_the_same_transaction_has_written(database_url: str) -> None:
    server = Server()
    server.register(Entry)

    async def post_first(ctx: Context, next: Next) -> None:
        await ctx.db(Entry).update(ctx.resource_id, state="posted")
        await next()

    server.pipeline.service.register(with_transaction(), operations=["update", "delete"])
    server.pipeline.service.register(post_first, operations=["update", "delete"])
    async with client(server, database=database_url) as http:
        entry = await created(http, "/api/entries", amount=1)
        one = f"/api/entries/{entry['id']}"
        error_of(await http.patch(one, json={"amount": 2}), 422, "RECORD_LOCKED")
        error_of(await http.delete(one), 422, "RECORD_LOCKED")
        assert data_of(await http.get(one)) == entry


async def test_of_a_lock_and_a_change_at_once_no_change_comes_after_the_lock(database_url: str) -> None:
    async with serving(database_url, Entry) as http:
        for _ in range(5):
            entry = await created(http, "/api/entries")
            one = f"/api/entries/{entry['id']}"
            changes = [http.patch(one, json={"amount": n}) for n in range(1, 6)]
            answers = await asyncio.gather(*changes, http.patch(one, json={"entryState": "posted"}))
            locked = data_of(answers[-1])
            assert data_of(await http.get(one)) == locked
            assert {answer.status_code for answer in answers} <= {200, 422}


class Balance(Model, WithDeletedAt):
    left: int = 0


class Movement(Model):
    balance_id: str = field(lock_scope="Balance")
    pieces: int


def stock(*, transaction: bool = True) -> Server:
    server = Server()
    server.register(Balance, Movement)
    if transaction:
        server.pipeline.service.register(with_transaction(), models=[Movement])
    return server


async def test_a_lock_scope_without_a_transaction_is_a_500_that_stores_nothing(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(stock(transaction=False), database=database_url) as http:
        balance = await created(http, "/api/balances")
        refused = await http.post("/api/movements", json={"balance_id": balance["id"], "pieces": 1})
        error_of(refused, 500, "LOCK_SCOPE_NO_TX")
        assert "balance_id" not in refused.text
        assert await total(http, "/api/movements") == 0
    [line] = [r for r in caplog.records if r.levelname == "ERROR"]
    assert "Movement.balance_id" in caplog.text
    assert line.__dict__["request_id"]


async def test_a_lock_scope_on_a_row_that_is_not_there_is_404(database_url: str) -> None:
    async with client(stock(), database=database_url) as http:
        gone = await created(http, "/api/balances")
        await http.delete(f"/api/balances/{gone['id']}")
        for balance_id in ("none", gone["id"]):
            refused = await http.post("/api/movements", json={"balance_id": balance_id, "pieces": 1})
            error_of(refused, 404, "NOT_FOUND")
        assert await total(http, "/api/movements") == 0


async def test_creates_under_one_lock_scope_never_oversell(database_url: str) -> None:
    server = stock()

    @server.pipeline.db.middleware(models=[Movement], operations=["create"], at="after")
    async def enough(ctx: Context, next: Next) -> None:
        balance = await ctx.db(Balance).read(ctx.field("balance_id"))
        if balance.left < ctx.field("pieces"):
            ctx.abort(409, "OUT_OF_STOCK", "not enough left")
        await ctx.db(Balance).update(balance.id, left=balance.left - ctx.field("pieces"))
        await next()

    async with client(server, database=database_url) as http:
        balance = await created(http, "/api/balances", left=5)
        body = {"balance_id": balance["id"], "pieces": 1}
        answers = await asyncio.gather(*(http.post("/api/movements", json=body) for _ in range(8)))
        assert sorted(answer.status_code for answer in answers) == [201] * 5 + [409] * 3
        assert data_of(await http.get(f"/api/balances/{balance['id']}"))["left"] == 0
        assert await total(http, "/api/movements") == 5
