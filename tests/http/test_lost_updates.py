"""A transaction that reads a record and then writes it overwrites no change it has not seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import copy_context
from decimal import Decimal
from typing import Any

import pytest
from pydantic import model_validator

from maniflex import Context, Model, Next, Server, WithDeletedAt, field, has_many
from maniflex.db import unchanged
from maniflex.errors import NotFound, SerializationFailure, TransactionError, ValidationFailed
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of


class Owner(Model):
    name: str
    accounts: list[Account] = has_many()


class Account(Model):
    owner_id: str | None = field(default=None, on_delete="set_null")
    name: str = field(default="", filterable=True)
    balance: int = field(default=0, filterable=True)
    worth: Decimal = Decimal(0)
    hits: int = field(default=0, min=0)


class Branch(Model):
    parent_id: str | None = field(default=None, relation="Branch", on_delete="cascade")
    leaves: int = 0


class Note(Model, WithDeletedAt):
    text: str


class Span(Model):
    low: int = 0
    high: int = 10

    @model_validator(mode="after")
    def in_order(self) -> Span:
        assert self.low <= self.high
        return self


class Bank:
    """A server with one account, and a rival that changes records outside the test's transaction."""

    def __init__(self, server: Server, account: Account) -> None:
        self.server = server
        self.account = account
        self.id = account.id
        self.waits = server.config.database.startswith("sqlite")  # for the transaction that is open
        self._outside = copy_context()

    async def meanwhile(self, work: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
        """Start the rival's work; on PostgreSQL it is done when this returns."""

        async def run() -> Any:
            return await work()

        task = asyncio.create_task(run(), context=self._outside)
        if not self.waits:
            await task
        return task

    async def in_transaction(self, work: Callable[[], Awaitable[None]]) -> None:
        async with self.server.transaction():
            await work()

    async def add(self, amount: int) -> asyncio.Task[Any]:
        return await self.meanwhile(lambda: self.server.db(Account).increment(self.id, balance=amount))

    async def balance(self) -> int:
        return (await self.server.db(Account).read(self.id)).balance


@asynccontextmanager
async def bank(url: str) -> AsyncIterator[Bank]:
    server = Server(url)
    server.register(Owner, Account, Note, Span)
    async with server.lifespan():
        owner = await server.db(Owner).create(name="o")
        account = await server.db(Account).create(name="a", owner_id=owner.id, balance=100)
        yield Bank(server, account)


async def by_id(b: Bank) -> Account:
    return await b.server.db(Account).read(b.id)


async def in_a_list(b: Bank) -> Account:
    [account] = await b.server.db(Account).list({"name": "a"})
    return account


async def in_a_page(b: Bank) -> Account:
    [account] = await b.server.db(Account).list([("balance", "gte", 0)], sorts="id", limit=1)
    return account


async def by_include(b: Bank) -> Account:
    [owner] = await b.server.db(Owner).list(include="accounts")
    return owner.accounts[0]


READS = [by_id, in_a_list, in_a_page, by_include]


@pytest.mark.parametrize("read", READS)
async def test_a_balance_computed_from_a_read_undoes_no_deposit(
    read: Callable[[Bank], Awaitable[Account]], database_url: str
) -> None:
    async with bank(database_url) as b:
        taken = 10
        try:
            async with b.server.transaction():
                account = await read(b)
                deposit = await b.add(5)
                await b.server.db(Account).update(b.id, balance=account.balance - taken)
        except SerializationFailure:
            taken = 0
        await deposit

        assert await b.balance() == 105 - taken
        assert taken == (10 if b.waits else 0)


@pytest.mark.parametrize("read", READS)
async def test_a_record_read_and_changed_since_is_not_deleted(
    read: Callable[[Bank], Awaitable[Account]], postgres_url: str
) -> None:
    async with bank(postgres_url) as b:

        async def work() -> None:
            await read(b)
            await b.add(5)
            await b.server.db(Account).delete(b.id)

        with pytest.raises(SerializationFailure):
            await b.in_transaction(work)

        assert await b.balance() == 105


async def test_a_record_that_others_refer_to_is_not_deleted_when_it_changed_since(postgres_url: str) -> None:
    async with bank(postgres_url) as b:
        owners = b.server.db(Owner)

        async def work() -> None:
            [owner] = await owners.list()
            await b.meanwhile(lambda: owners.update(owner.id, name="renamed"))
            await owners.delete(owner.id)

        with pytest.raises(SerializationFailure):
            await b.in_transaction(work)

        assert [o.name for o in await owners.list()] == ["renamed"]
        async with b.server.transaction():
            [owner] = await owners.list()
            await owners.delete(owner.id)
        assert (await b.server.db(Account).read(b.id)).owner_id is None


async def test_a_softly_deleted_record_is_compared_too(postgres_url: str) -> None:
    async with bank(postgres_url) as b:
        notes = b.server.db(Note)
        note = await notes.create(text="old")

        async def work() -> None:
            await notes.read(note.id)
            await b.meanwhile(lambda: notes.update(note.id, text="new"))
            await notes.delete(note.id)

        with pytest.raises(SerializationFailure):
            await b.in_transaction(work)

        assert (await notes.read(note.id)).text == "new"


async def test_a_record_with_validators_of_its_own_is_compared_under_its_lock(postgres_url: str) -> None:
    async with bank(postgres_url) as b:
        spans = b.server.db(Span)
        span = await spans.create()

        async def work() -> None:
            high = (await spans.read(span.id)).high
            await b.meanwhile(lambda: spans.update(span.id, high=20))
            await spans.update(span.id, high=high + 1)

        with pytest.raises(SerializationFailure):
            await b.in_transaction(work)
        assert (await spans.read(span.id)).high == 20

        async with b.server.transaction():
            high = (await spans.read(span.id)).high
            await spans.update(span.id, high=high + 1)
            await spans.update(span.id, low=high + 1)
        assert (await spans.read(span.id)).low == 21


async def test_the_first_of_two_reads_is_the_one_that_counts(postgres_url: str) -> None:
    async with bank(postgres_url) as b:

        async def work() -> None:
            early = await by_id(b)
            await b.add(5)
            await by_id(b)
            await b.server.db(Account).update(b.id, balance=early.balance + 1)

        with pytest.raises(SerializationFailure):
            await b.in_transaction(work)

        assert await b.balance() == 105


async def test_a_transaction_that_swallows_the_collision_commits_nothing(postgres_url: str) -> None:
    async with bank(postgres_url) as b:

        async def work() -> None:
            await b.server.db(Note).create(text="half of it")
            account = await by_id(b)
            await b.add(5)
            with pytest.raises(SerializationFailure):
                await b.server.db(Account).update(b.id, balance=account.balance)

        with pytest.raises(TransactionError) as refused:
            await b.in_transaction(work)

        assert refused.value.code == "TX_COMMIT_ERROR"
        assert await b.server.db(Note).count() == 0


async def test_a_record_deleted_since_it_was_read_is_not_found(postgres_url: str) -> None:
    async with bank(postgres_url) as b:

        async def work() -> None:
            await by_id(b)
            await b.meanwhile(lambda: b.server.db(Account).delete(b.id))
            await b.server.db(Account).update(b.id, balance=1)

        with pytest.raises(NotFound):
            await b.in_transaction(work)


async def increments(b: Bank) -> None:
    await b.server.db(Account).increment(b.id, balance=-10)


async def increments_a_decimal(b: Bank) -> None:
    await b.server.db(Account).increment(b.id, worth=Decimal("0.1"))
    await b.server.db(Account).increment(b.id, balance=-10)


async def writes_by_hand_then_updates(b: Bank) -> None:
    await b.server.raw_exec("UPDATE accounts SET balance = balance - 10 WHERE id = ?", b.id)
    await b.server.db(Account).update(b.id, name="changed")


@pytest.mark.parametrize("write", [increments, increments_a_decimal, writes_by_hand_then_updates])
async def test_writes_that_add_to_what_is_stored_need_no_unchanged_record(
    write: Callable[[Bank], Awaitable[None]], database_url: str
) -> None:
    async with bank(database_url) as b:
        async with b.server.transaction():
            await by_id(b)
            deposit = await b.add(5)
            await write(b)
        await deposit

        assert await b.balance() == 95


async def test_a_write_without_a_read_waits_and_then_happens(postgres_url: str) -> None:
    async with bank(postgres_url) as b:
        async with b.server.transaction():
            await b.add(5)
            await b.server.db(Account).update(b.id, balance=7)

        assert await b.balance() == 7


async def test_one_transaction_may_write_what_it_wrote_as_often_as_it_likes(database_url: str) -> None:
    async with bank(database_url) as b:
        accounts = b.server.db(Account)
        async with b.server.transaction():
            made = await accounts.create(balance=1)
            for _ in range(3):
                read = await accounts.read(made.id)
                await accounts.update(made.id, balance=read.balance + 1)
                [read] = await accounts.list({"id": made.id})
                await accounts.update(made.id, balance=read.balance + 1)
            account = await by_id(b)
            await b.server.db(Owner).delete(account.owner_id or "")  # empties the key of the account
            await accounts.update(b.id, balance=account.balance - 10)
            doomed = await accounts.create()
            await accounts.read(doomed.id)
            await accounts.delete(doomed.id)

        assert (await accounts.read(made.id)).balance == 7
        assert await b.balance() == 90


@pytest.mark.parametrize("reads_before", [False, True])
@pytest.mark.parametrize("races", [False, True])
async def test_a_record_is_locked_unless_it_changed_since_it_was_read(
    reads_before: bool, races: bool, database_url: str
) -> None:
    server = Server()
    server.register(Owner, Account)
    outside = copy_context()

    @server.action("POST", "/accounts/{id}/take")
    async def take(ctx: Context) -> Account:
        async with ctx.transaction():
            if reads_before:
                await ctx.db(Account).read(ctx.url_param("id"))
            deposit = None
            if races:
                add = server.db(Account).increment(ctx.url_param("id"), balance=5)
                deposit = asyncio.create_task(add, context=outside)
                if ctx.adapter.dialect != "sqlite":
                    await deposit
            account = await ctx.lock_for_update(Account, ctx.url_param("id"))
            taken = await ctx.db(Account).update(account.id, balance=account.balance - 10)
        if deposit is not None:
            await deposit
        return taken

    async with client(server, database=database_url) as http:
        account = await created(http, "/api/accounts", balance=100)
        answer = await http.post(f"/api/accounts/{account['id']}/take")

        refused = reads_before and races and not database_url.startswith("sqlite")
        assert answer.status_code == (409 if refused else 200), answer.text
        left = (105 if races else 100) - (0 if refused else 10)
        assert data_of(await http.get(f"/api/accounts/{account['id']}"))["balance"] == left


async def after_an_increment(b: Bank) -> None:
    await b.server.db(Account).increment(b.id, hits=1)


async def after_a_decimal_increment(b: Bank) -> None:
    await b.server.db(Account).increment(b.id, worth=Decimal("0.1"))


async def after_an_increment_that_failed(b: Bank) -> None:
    with pytest.raises(ValidationFailed):
        await b.server.db(Account).increment(b.id, hits=-1)


async def after_an_increment_and_another_read(b: Bank) -> None:
    await b.server.db(Account).increment(b.id, hits=1)
    await by_id(b)


async def after_its_owner_was_deleted(b: Bank) -> None:
    await b.server.db(Owner).delete(b.account.owner_id or "")


@pytest.mark.parametrize(
    "write",
    [
        after_an_increment,
        after_a_decimal_increment,
        after_an_increment_that_failed,
        after_an_increment_and_another_read,
        after_its_owner_was_deleted,
    ],
)
@pytest.mark.parametrize("races", [False, True])
async def test_a_write_of_its_own_makes_an_earlier_read_no_fresher(
    write: Callable[[Bank], Awaitable[None]], races: bool, database_url: str
) -> None:
    async with bank(database_url) as b:
        taken, deposit = 10, None
        try:
            async with b.server.transaction():
                account = await by_id(b)
                deposit = await b.add(5) if races else None
                await write(b)
                await b.server.db(Account).update(b.id, balance=account.balance - 10)
        except SerializationFailure:
            taken = 0
        if deposit is not None:
            await deposit

        assert taken == (0 if races and not b.waits else 10)
        assert await b.balance() == (105 if races else 100) - taken


async def test_a_record_met_in_a_tree_counts_as_read(database_url: str) -> None:
    server = Server()
    server.register(Branch)
    outside = copy_context()

    @server.action("POST", "/branches/{id}/grow")
    async def grow(ctx: Context) -> None:
        async with ctx.transaction():
            root = ctx.url_param("id")
            [branch] = await ctx.recursive_query(Branch, root_id=root, parent_field="parent_id")
            other = asyncio.create_task(server.db(Branch).increment(root, leaves=5), context=outside)
            if ctx.adapter.dialect != "sqlite":
                await other
            await ctx.db(Branch).update(root, leaves=branch["leaves"] + 1)
        await other

    async with client(server, database=database_url) as http:
        branch = await created(http, "/api/branches")
        answer = await http.post(f"/api/branches/{branch['id']}/grow")

        refused = not database_url.startswith("sqlite")
        assert answer.status_code == (409 if refused else 204), answer.text
        leaves = data_of(await http.get(f"/api/branches/{branch['id']}"))["leaves"]
        assert leaves == (5 if refused else 6)


@pytest.mark.parametrize("races", [False, True])
async def test_a_cascade_deletes_no_record_that_changed_since_it_was_read(
    races: bool, database_url: str
) -> None:
    server = Server(database_url)
    server.register(Branch)
    outside = copy_context()
    async with server.lifespan():
        branches = server.db(Branch)
        root = await branches.create()
        twig = await branches.create(parent_id=root.id)
        refused = races and not database_url.startswith("sqlite")
        try:
            async with server.transaction():
                await branches.read(twig.id)
                if refused:
                    await asyncio.create_task(branches.increment(twig.id, leaves=5), context=outside)
                await branches.delete(root.id)
        except SerializationFailure:
            assert refused

        assert await branches.count() == (2 if refused else 0)


async def test_a_deleted_record_that_changed_since_it_was_read_is_not_restored(postgres_url: str) -> None:
    async with bank(postgres_url) as b:
        notes = b.server.db(Note)
        note = await notes.create(text="old")

        async def change() -> None:
            await notes.update(note.id, text="new")
            await notes.delete(note.id)

        async def work() -> None:
            await notes.read(note.id)
            await b.meanwhile(change)
            await notes.restore(note.id)

        with pytest.raises(SerializationFailure):
            await b.in_transaction(work)

        async with b.server.transaction():
            await notes.restore(note.id)
            await notes.update(note.id, text="newer")
        assert (await notes.read(note.id)).text == "newer"


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_request_in_a_transaction_whose_middleware_read_the_record_is_refused_when_it_changed(
    method: str, postgres_url: str
) -> None:
    server = Server()
    server.register(Owner, Account)
    outside = copy_context()

    @server.pipeline.service.middleware(models=[Account], operations=["update", "delete"])
    async def look(ctx: Context, next: Next) -> None:
        async with ctx.transaction():
            await ctx.db(Account).read(ctx.resource_id)
            if ctx.header("x-race"):
                deposit = server.db(Account).increment(ctx.resource_id, balance=5)
                await asyncio.create_task(deposit, context=outside)
            await next()

    async with client(server, database=postgres_url) as http:
        path = f"/api/accounts/{(await created(http, '/api/accounts', balance=1))['id']}"
        body = {"balance": 2} if method == "PATCH" else None
        refused = await http.request(method, path, json=body, headers={"x-race": "1"})

        error = error_of(refused, 409, "CONFLICT")
        assert error["retryable"] is True
        assert error["message"] == "the record has changed since this transaction read it; try again"
        assert data_of(await http.get(path))["balance"] == 6
        assert (await http.request(method, path, json=body)).is_success


class Page(Model, cursor_field="created_at"):
    name: str = field(searchable=True, sortable=True)
    amount: Decimal = Decimal("1.50")


async def test_reads_answer_inside_a_transaction_as_they_do_outside(database_url: str) -> None:
    server = Server()
    server.register(Owner, Account, Page)

    @server.pipeline.service.middleware(operations=["list", "read"])
    async def in_a_transaction(ctx: Context, next: Next) -> None:
        if not ctx.header("x-inside"):
            await next()
            return
        async with ctx.transaction():
            await next()

    async with client(server, database=database_url) as http:
        owner = await created(http, "/api/owners", name="o")
        for name in "abc":
            await created(http, "/api/accounts", name=name, owner_id=owner["id"], worth="1.50")
            page = await created(http, "/api/pages", name=f"word {name}")
        for path in (
            "/api/accounts",
            "/api/accounts?limit=2&page=2&select=name",
            "/api/accounts?page=9",
            "/api/accounts?filter=name:eq:b&include=owner",
            "/api/owners?include=accounts",
            f"/api/owners/{owner['id']}?include=accounts",
            f"/api/pages/{page['id']}",
            "/api/pages?q=word",
            "/api/pages?q=word&sort=name:desc",
            "/api/pages?cursor=&limit=2",
        ):
            outside, inside = await http.get(path), await http.get(path, headers={"x-inside": "1"})
            assert outside.status_code == 200, outside.text
            assert inside.content == outside.content


async def test_a_transaction_that_reads_very_many_records_stays_safe(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unchanged, "KEPT", 10)
    async with bank(postgres_url) as b:
        accounts = b.server.db(Account)
        for n in range(40):
            await accounts.create(name="many", balance=n)

        async with b.server.transaction():  # the last ones are known, and what it writes itself is
            many = await accounts.list({"name": "many"}, sorts="id")
            await accounts.update(many[-1].id, balance=many[-1].balance + 1)
            made = await accounts.create(balance=1)
            await accounts.update(made.id, balance=2)
            await accounts.increment(many[0].id, balance=1)
            await accounts.update(many[0].id, balance=1)

        async def work() -> None:
            many = await accounts.list({"name": "many"}, sorts="id")
            await accounts.update(many[1].id, balance=many[1].balance + 1)

        with pytest.raises(TransactionError, match="lock_for_update") as refused:
            await b.in_transaction(work)
        assert refused.value.code == "TX_TOO_MANY_READS"


def test_of_more_rows_than_are_kept_the_last_ones_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchanged, "KEPT", 10)
    table = unchanged.TableVersions()
    table.note_rows([(str(n), n) for n in range(20)], 0, 1)
    before = table.complete

    table.note_rows([(str(n), n) for n in range(20, 1_000)], 0, 1)

    assert (before, table.complete) == (True, False)
    assert [table.get(str(n)) for n in range(990, 1_000)] == list(range(990, 1_000))
    assert sum(table.get(str(n)) is not None for n in range(1_000)) <= 22
