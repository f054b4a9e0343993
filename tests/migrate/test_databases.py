"""Models in several databases, in a schema of their own, and processes that start at the same time."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from maniflex import Model, Server, field
from maniflex.errors import ConfigError
from tests.kit.processes import run_program
from tests.kit.schema import columns, model, tables
from tests.kit.servers import started

APP = """
import asyncio, sys
from maniflex import Model, Server, field

class Note(Model):
    slug: str = field(unique=True)
    size: int = field(default=0, index=True)

class Tag(Model):
    name: str = field(unique=True)
    note_id: str

server = Server(sys.argv[1], pool_size=2)
server.register(Note, Tag)

async def main():
    print("loaded", flush=True)
    sys.stdin.readline()
    async with server.lifespan():
        await server.db(Note).create(slug=sys.argv[2])

asyncio.run(main())
"""

MIGRATION_LOCK = 0x6D616E69666C6578 >> 1
WAITED_LONG = """
SELECT 1 FROM pg_stat_activity
 WHERE wait_event = 'advisory' AND datname = current_database()
   AND clock_timestamp() - query_start > interval '100 ms'
"""


def test_processes_that_start_together_make_one_schema(database_url: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        programs = [
            stack.enter_context(run_program(APP, database_url, f"note-{n}", errors=subprocess.PIPE))
            for n in range(4)
        ]
        for program in programs:
            assert program.hear() == "loaded"
        for program in programs:
            program.say("go")
        failures = [program.errors() for program in programs if program.process.wait(60)]

    assert failures == []
    note = model("Note", "notes", {"slug": (str, field(unique=True)), "size": (int, 0)})
    assert asyncio.run(count(database_url, note)) == 4


async def count(url: str, of: type[Model]) -> int:
    async with started(url, of) as server:
        return await server.db(of).count()


async def test_a_start_waits_for_another_process_that_migrates_longer_than_any_timeout(
    postgres_url: str,
) -> None:
    brief = timedelta(milliseconds=80)
    server = Server(postgres_url, lock_timeout=brief, statement_timeout=brief)
    server.register(model("Thing", "things", {"name": str}))
    other = await asyncpg.connect(postgres_url)
    try:
        await other.execute("SELECT pg_advisory_lock($1)", MIGRATION_LOCK)
        start = asyncio.create_task(server.start())
        async with asyncio.timeout(20):
            while not await other.fetchval(WAITED_LONG):
                assert not start.done()
    finally:
        await other.close()  # which ends its lock
    await start
    await server.stop()
    assert await tables(postgres_url) == {"things"}


async def test_models_live_where_they_say_and_only_there(tmp_path: Path, postgres_url: str) -> None:
    default = f"sqlite:///{tmp_path}/default.db"
    audit = f"sqlite:///{tmp_path}/audit.db"

    class Note(Model):
        text: str

    class Entry(Model, database=audit):
        text: str

    class Fact(Model, database=postgres_url):
        text: str

    class Other(Model, database=audit):
        text: str

    async with started(default, Note, Entry, Fact, Other) as server:
        models: list[Any] = [Note, Entry, Fact, Other]
        for each in models:
            made = await server.db(each).create(text="first")
            assert (await server.db(each).update(made.id, text="second")).text == "second"
            assert (await server.db(each).read(made.id)).text == "second"
            answer = await server.execute("list", each)
            assert answer.status == 200
            await server.db(each).delete(made.id)
            assert await server.db(each).count() == 0

    assert await tables(default) == {"notes"}
    assert await tables(audit) == {"entries", "others"}
    assert await tables(postgres_url) == {"facts"}


async def test_a_transaction_covers_its_own_database_only(tmp_path: Path, database_url: str) -> None:
    class Note(Model):
        text: str

    class Entry(Model, database=f"sqlite:///{tmp_path}/audit.db"):
        text: str

    async with started(database_url, Note, Entry) as server:

        async def half_way() -> None:
            async with server.transaction():
                await server.db(Note).create(text="rolled back")
                await server.db(Entry).create(text="stays")
                raise RuntimeError("never mind")

        with pytest.raises(RuntimeError, match="never mind"):
            await half_way()
        assert await server.db(Note).count() == 0
        assert await server.db(Entry).count() == 1


async def test_a_schema_of_its_own_is_made_and_used(postgres_url: str) -> None:
    thing = model("Thing", "things", {"name": str})
    for schema in ("sales", "Archive"):
        for _ in range(2):
            async with started(postgres_url, thing, schema=schema) as server:
                await server.db(thing).create(name=schema)
        assert await tables(postgres_url, schema=schema) == {"things"}
        async with started(postgres_url, thing, schema=schema) as server:
            assert {each.__dict__["name"] for each in await server.db(thing).list()} == {schema}
    assert await tables(postgres_url) == set()

    grown = model("Thing", "things", {"name": str, "size": (int, 0)})
    async with started(postgres_url, grown, schema="sales"):
        pass
    assert "size" in await columns(postgres_url, "things", schema="sales")
    assert "size" not in await columns(postgres_url, "things", schema="Archive")


@pytest.mark.parametrize("schema", ['a"; DROP TABLE x', "a b", "", "1a", "s" * 64])
def test_a_schema_that_is_no_name_is_refused(schema: str) -> None:
    server = Server("postgresql://127.0.0.1/none", schema=schema)

    with pytest.raises(ConfigError, match="schema"):
        server.seal()
