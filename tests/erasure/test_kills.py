"""An erasure that is killed wherever it is goes on: one report, each record once, and nothing is left."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.erasure.test_bytes import fill
from tests.erasure.world import PERSON, Words, a_shop, served
from tests.kit.processes import nursery
from tests.kit.stored_bytes import stored_bytes

# A life ends at a step that it is told: before or after a batch, its commit, a file or a table written anew.
LIFE = """
import asyncio, os, signal, sys
from pathlib import Path
from maniflex.erasure import disk
from maniflex.erasure.erasing import Erasing
from maniflex.erasure.records import RecordEraser
from maniflex.erasure.work import WorkEraser
from tests.erasure.world import PERSON, a_shop

left = 10**9

def wrapped(call):
    async def wrapper(*args, **kwargs):
        step()
        outcome = await call(*args, **kwargs)
        step()
        return outcome
    return wrapper

def step():
    global left
    left -= 1
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)

for cls, names in (
    (Erasing, ("_commit", "_note", "_note_exceptions", "finish")),
    (RecordEraser, ("erase_batch", "_anonymise", "_scrub", "_give_up_files", "erase_past")),
    (WorkEraser, ("blank", "_fail", "erase_trace", "rewrite_messages")),
):
    for name in names:
        setattr(cls, name, wrapped(getattr(cls, name)))
disk.rewrite = wrapped(disk.rewrite)

async def main(steps):
    global left
    server = a_shop(sys.argv[1], Path(sys.argv[2]), auto_migrate=False)
    async with server.lifespan(role="client"):
        left = steps
        await server.erasure.erase(PERSON, reason="she asked for it")

def live(line):
    asyncio.run(main(int(line)))
"""


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.long)])
async def test_an_erasure_goes_on_wherever_it_was_killed(
    database_url: str, tmp_path: Path, kills: int
) -> None:
    words, chance = Words(), random.Random(kills)
    server = a_shop(database_url, tmp_path / "files")
    async with served(server) as http:
        await fill(server, http, words, Words("wvu"))
        foreseen = await server.erasure.erase(PERSON, dry_run=True)
    with nursery(LIFE, database_url, tmp_path / "files") as place:
        for _ in range(kills):
            place.start(chance.randrange(1, 60))
            place.until_gone()
    server = a_shop(database_url, tmp_path / "files")
    async with server.lifespan():
        await server.erasure.erase(PERSON)

        [row] = [one for one in await server.raw_query("SELECT * FROM erasure") if str(one["counts"]) != "{}"]
        assert row["state"] == "finished"
        counts = row["counts"]
        assert (counts if isinstance(counts, dict) else eval(counts)) == dict(foreseen.counts)
        assert words.found_in(await stored_bytes(database_url)) == []
        [versions] = await server.raw_query(
            "SELECT count(*) AS rows, count(DISTINCT record_id) AS records FROM order_histories"
            " WHERE source = 'erasure'"
        )
        assert (versions["rows"], versions["records"]) == (3, 3)
