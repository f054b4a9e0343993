"""PostgreSQL: `up` beside writers, beside a stranger's lock, beside another `up`, and killed on its way."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import httpx
import pytest

from tests.kit.migrations import Application
from tests.kit.processes import serve_process
from tests.kit.waiting import until

ITEM = """
class Item(Model):
    name: str
    size: int = 0
"""
GROWN = ITEM + '    code: str\n    colour: str = field(default="red", index=True)\n'
FILL = """
INSERT INTO items (id, name, size, created_at, updated_at)
SELECT 'id' || n, 'item ' || n, n, now(), now() FROM generate_series(1, {}) n
"""


@pytest.fixture
def items(tmp_path: Path, postgres_url: str) -> Application:
    """An application that files keep, whose next file adds an index, a column and a backfill."""
    application = Application(tmp_path, postgres_url)
    application.write(ITEM).migrate("make", "-m", "first")
    application.migrate("up")
    return application


def grow(application: Application, rows: int, batch: int = 1000) -> None:
    """Rows for the table, and the file that is to be applied to them."""
    application.sql(FILL.format(rows))
    application.write(GROWN).migrate("make", "-m", "grow")
    path = application.files[-1]
    text = path.read_text()
    place = next(line for line in text.splitlines() if line.strip().startswith("# op.backfill"))
    call = (
        place.replace("# ", "")
        .replace("\"'…'\"", "\"'c-' || id\"")
        .replace(")", f", batch={batch}, pause=0.001)")
    )
    path.write_text(text.replace(place, call))


def start_up(application: Application, *options: str) -> subprocess.Popen[str]:
    """`maniflex migrate up` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "maniflex", "migrate", "up", "app:server", *options],
        cwd=application.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def require_grown(application: Application) -> None:
    """The file is applied as a whole, and the database is what the models are."""
    assert "ok" in application.migrate("check")
    [[left]] = application.sql("SELECT count(*) FROM items WHERE code IS DISTINCT FROM 'c-' || id")
    assert left == 0


async def write_until(url: str, stop: asyncio.Event, begun: asyncio.Barrier, waits: list[float]) -> list[str]:
    """One client of the previous release, whose process knows nothing of new columns; what it was refused."""
    refusals = []
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        await begun.wait()
        while not stop.is_set():
            began = time.monotonic()
            made = await http.post("/api/items", json={"name": "new", "size": 1})
            if made.status_code == 201:
                id = made.json()["data"]["id"]
                made = await http.patch(f"/api/items/{id}", json={"size": 2})
            waits.append(time.monotonic() - began)
            if made.status_code not in (200, 201):
                refusals.append(made.text)
    return refusals


OLD_AND_NEW = GROWN.replace("    code: str\n", '    code: str = "none"\n')


@pytest.mark.parametrize("clients", [10, pytest.param(50, marks=pytest.mark.long)])
def test_up_beside_the_previous_release_fails_none_of_its_requests(
    items: Application, clients: int, long_mode: bool
) -> None:
    items.sql(FILL.format(1_000_000 if clients == 50 else 20_000))
    waits: list[float] = []

    async def work(url: str) -> tuple[list[list[str]], str]:
        stop = asyncio.Event()
        begun = asyncio.Barrier(clients + 1)
        writers = [asyncio.create_task(write_until(url, stop, begun, waits)) for _ in range(clients)]
        await begun.wait()
        process = start_up(items)
        output, _ = await asyncio.to_thread(process.communicate)
        stop.set()
        return await asyncio.gather(*writers), f"{process.returncode} {output}"

    with serve_process(items.directory, ACCESS_LOG="false") as previous:
        items.write(OLD_AND_NEW).migrate("make", "-m", "grow")
        path = items.files[-1]
        fill = '    op.backfill("items", set={"code": "\'c-\' || id"}, where="code = \'none\'")\n'
        path.write_text(path.read_text().replace("\n\n\ndef downgrade", "\n" + fill + "\n\ndef downgrade"))
        refusals, output = asyncio.run(work(previous.url))

    assert output.startswith("0 "), output
    assert [text for one in refusals for text in one] == []
    print(f"{len(waits)} writes beside up, the longest took {max(waits):.2f} s")
    assert max(waits) < (1.0 if clients == 50 else 10.0), f"{len(waits)} writes, longest {max(waits):.2f} s"
    assert "ok" in items.migrate("check")


def test_a_killed_up_is_finished_by_the_next(items: Application, long_mode: bool) -> None:
    grow(items, 20_000, batch=200)
    draw = random.Random(7)
    kills = 20 if long_mode else 3
    for _ in range(kills):
        process = start_up(items)
        try:
            process.communicate(timeout=draw.uniform(0.8, 3.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()

    items.migrate("up")

    require_grown(items)


def test_a_stranger_who_locks_the_table_makes_up_give_up_with_a_sentence(items: Application) -> None:
    grow(items, 10)

    async def with_lock() -> str:
        stranger = await asyncpg.connect(items.url)
        try:
            async with stranger.transaction():
                await stranger.execute("LOCK TABLE items IN ACCESS SHARE MODE")
                process = start_up(items, "--lock-timeout", "50ms", "--tries", "2")
                output, _ = await asyncio.to_thread(process.communicate)
                assert process.returncode == 1
                return output
        finally:
            await stranger.close()

    output = asyncio.run(with_lock())

    assert "another session held the lock of a table in all 2 tries of 50 ms" in output
    assert "Traceback" not in output
    items.migrate("up")
    require_grown(items)


def test_an_index_that_was_left_unfinished_is_built_again(items: Application) -> None:
    items.sql(FILL.format(10), "UPDATE items SET size = 1")
    items.write(ITEM.replace("size: int = 0", "size: int = field(default=0, index=True)"))
    items.migrate("make")

    async def break_index() -> None:
        connection = await asyncpg.connect(items.url)
        with pytest.raises(asyncpg.UniqueViolationError):  # it leaves behind what a killed build leaves
            await connection.execute("CREATE UNIQUE INDEX CONCURRENTLY idx_items_size ON items (size)")
        await connection.close()

    asyncio.run(break_index())
    assert "was never finished" in items.migrate("check", code=1)

    items.migrate("up")

    assert "ok" in items.migrate("check")


def test_a_unique_index_over_equal_values_is_refused_and_leaves_nothing(items: Application) -> None:
    items.sql(FILL.format(10), "UPDATE items SET name = 'same'")
    items.write(ITEM.replace("name: str", "name: str = field(unique=True)"))
    items.migrate("make")

    output = items.migrate("up", code=1)

    assert "items has rows with equal values in name, so the unique index uq_items_name" in output
    assert items.sql("SELECT 1 FROM pg_class WHERE relname = 'uq_items_name'") == []
    items.sql("UPDATE items SET name = id")
    items.migrate("up")
    assert "ok" in items.migrate("check")


def test_two_up_at_once_apply_each_file_once(items: Application) -> None:
    grow(items, 2000, batch=100)

    processes = [start_up(items) for _ in range(2)]
    outputs = [process.communicate()[0] for process in processes]

    assert [process.returncode for process in processes] == [0, 0], outputs
    assert sorted("applied 1 file" in output for output in outputs) == [False, True], outputs
    assert sum("nothing to do" in output for output in outputs) == 1
    require_grown(items)


_BUILDS_THAT_WAIT = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND query LIKE 'CREATE INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'
"""


def test_an_up_that_waits_for_another_does_not_stand_in_the_way_of_its_index(items: Application) -> None:
    items.sql(FILL.format(10))
    items.write(ITEM.replace("size: int = 0", "size: int = field(default=0, index=True)"))
    items.migrate("make")
    with asyncio.Runner() as runner:
        writer = runner.run(asyncpg.connect(items.url))
        runner.run(writer.execute("BEGIN; UPDATE items SET size = size"))
        first = start_up(items)
        until(lambda: items.sql(_BUILDS_THAT_WAIT)[0][0] == 1, "an index that waits for the writer")
        second = start_up(items)
        assert second.stdout is not None
        assert "another process migrates" in second.stdout.readline()
        runner.run(writer.execute("COMMIT"))
        runner.run(writer.close())

    outputs = [process.communicate()[0] for process in (first, second)]

    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert "ok" in items.migrate("check")


def test_search_on_a_large_table_waits_for_a_quiet_hour(items: Application) -> None:
    items.sql(FILL.format(10_100))
    items.write(ITEM.replace("name: str", "name: str = field(searchable=True)"))

    refusal = items.migrate("up", code=1)

    assert "searching adds a column to items, of more than 10,000 rows" in refusal
    assert "maniflex migrate up app:server --allow-rewrite" in refusal
    vector = "SELECT 1 FROM pg_attribute WHERE attname = 'search_vector' AND attrelid = 'items'::regclass"
    assert items.sql(vector) == []
    items.migrate("up", "--allow-rewrite")
    assert len(items.sql(vector)) == 1
    items.migrate("up")


def test_a_file_that_is_applied_in_part_is_finished_before_it_is_undone(items: Application) -> None:
    items.sql(FILL.format(10))
    items.write(ITEM + "    serial: str\n    weight: int = 0\n")
    items.migrate("make", "-m", "serial")
    items.migrate("up", code=1)  # its column is added, and has no values that could be required

    refusal = items.migrate("down", "--yes", code=1)

    assert "is applied in part" in refusal
    assert "maniflex migrate up app:server" in refusal
    file = items.files[-1]
    step = 'op.set_not_null("items", "serial")'
    file.write_text(
        file.read_text().replace(step, f'op.backfill("items", set={{"serial": "id"}})\n    {step}')
    )
    items.migrate("up")
    assert "ok" in items.migrate("check")
    items.migrate("down", "--yes")


def test_a_file_that_is_undone_in_part_is_undone_before_others_are_applied(items: Application) -> None:
    items.sql(FILL.format(10))
    items.write(ITEM + "    weight: int = 0\n    height: int = 0\n")
    items.migrate("make", "-m", "weight")
    items.migrate("up")
    file = items.files[-1]
    whole = file.read_text()
    last_step = 'op.drop_column("items", "weight")'
    file.write_text(whole.replace(last_step, 'op.execute("SELECT 1 / 0")'))
    items.migrate("down", "--yes", code=1)
    file.write_text(whole)

    refusal = items.migrate("up", code=1)

    assert "is undone in part" in refusal
    assert "maniflex migrate down app:server" in refusal
    items.migrate("down", "--yes")
    items.migrate("up")
    assert "ok" in items.migrate("check")
