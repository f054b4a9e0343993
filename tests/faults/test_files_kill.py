"""Processes killed while they store, replace and delete files: everything fits together again."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

from maniflex.files.store import FileState
from maniflex.storage import LocalStorage
from maniflex.testing.clock import FakeClock
from tests.kit.files import Album, Archive, an_archive
from tests.kit.processes import IMPORTS, nursery, run_command

# Each life draws how many steps it lives: every call that writes to the disk or the database is two, before
# and after it. So the kill comes in the middle of a store, a commit, a delete, wherever the steps lead it.
LIFE = """
import asyncio, os, random, signal, sys
from maniflex import Server
from maniflex.files.owner import NOBODY
from maniflex.files.store import FileStore
from maniflex.model.field import FileRules
from maniflex.storage.local import LocalStorage
from tests.kit.files import Album, in_pieces

url, directory = sys.argv[1:]
left = 10**9

def step():
    global left
    left -= 1
    if left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)

def wrapped(call):
    def wrapper(*args, **kwargs):
        step()
        outcome = call(*args, **kwargs)
        step()
        return outcome
    return wrapper

def wrapped_async(call):
    async def wrapper(*args, **kwargs):
        step()
        outcome = await call(*args, **kwargs)
        step()
        return outcome
    return wrapper

for name in ("fsync", "link", "rename", "replace", "unlink", "writev", "mkdir", "rmdir"):
    setattr(os, name, wrapped(getattr(os, name)))
for name in ("begin", "complete", "condemn", "claim", "remove", "put_back", "lock", "link", "unlink"):
    setattr(FileStore, name, wrapped_async(getattr(FileStore, name)))
for name in ("store", "delete"):
    setattr(LocalStorage, name, wrapped_async(getattr(LocalStorage, name)))

async def main(seed):
    global left
    chance = random.Random(seed)
    server = Server(url, storage=LocalStorage(directory), auto_migrate=False)
    server.register(Album)
    async with server.lifespan(role="client"):
        records = server.db(Album)
        left = chance.randrange(1, 160)

        async def put():
            data = chance.randbytes(chance.choice((10, 5000)))
            if chance.random() < 0.5:
                return (await server.files.store(data, filename="a.bin", content_type="image/png")).key
            return (await server.files.desk.store(in_pieces(data), filename="b.bin", content_type="image/png",
                                                  owner=NOBODY, rules=FileRules())).key

        for _ in range(200):
            albums = await records.list()
            album = chance.choice(list(albums)) if albums else None
            match chance.randrange(6):
                case 0 | 1:
                    await records.create(cover=await put(), scans=[await put()])
                case 2 if album is not None:
                    await records.update(album.id, cover=await put())
                case 3 if album is not None:
                    async with server.transaction():
                        await records.update(album.id, scans=[])
                        await records.create(cover=album.cover)
                case 4 if album is not None:
                    await records.delete(album.id)
                case 5:
                    await server.files.sweep()

def live(line):
    asyncio.run(main(int(line)))
"""
LIVES, LIVES_IN_LONG_MODE = 8, 100


async def unfinished(archive: Archive) -> int:
    """How many files a life was in the middle of when it ended."""
    [row] = await archive.server.raw_query(
        "SELECT count(*) AS n FROM stored_file WHERE state = 'pending' OR lease IS NOT NULL"
    )
    return int(row["n"])


async def require_fit(archive: Archive) -> None:
    """Everything fits after one sweep: rows have their objects, objects their rows, records their files."""
    objects = await archive.swept()
    report = await archive.files.check()
    rows = await archive.server.raw_query("SELECT key, state, sha256 FROM stored_file")
    named: set[str] = set()
    for album in await archive.server.db(Album).list():
        named |= {album.cover or "", *album.scans} - {""}
    assert report.is_clean, report
    assert {row["key"] for row in rows} == objects
    assert {row["state"] for row in rows} <= {FileState.STORED, FileState.LINKED}
    assert {row["key"] for row in rows if row["state"] == FileState.LINKED} == named
    for row in rows:
        assert hashlib.sha256(await archive.read(row["key"])).hexdigest() == row["sha256"]


async def test_files_fit_their_records_again_after_every_kill(
    database_url: str, tmp_path: Path, long_mode: bool
) -> None:
    directory = tmp_path / "files"
    lives = LIVES_IN_LONG_MODE if long_mode else LIVES
    async with an_archive(database_url, storage=LocalStorage(directory)):
        pass  # the tables
    left_behind = 0
    with nursery(LIFE, database_url, directory) as place:
        for number in range(lives):
            place.start(number)
            place.until_gone()
            # Later than any lease and any upload lasts.
            clock = FakeClock(datetime.now(UTC) + timedelta(days=2))
            async with an_archive(
                database_url, storage=LocalStorage(directory, clock=clock), clock=clock
            ) as archive:
                left_behind += await unfinished(archive)
                await require_fit(archive)
    assert left_behind  # some were killed in the middle of a file
    (tmp_path / "app.py").write_text(
        "import os\nfrom maniflex import Server\nfrom tests.kit.files import Album\n"
        'server = Server(os.environ["DB"], storage="file:files")\nserver.register(Album)\n'
    )
    done = run_command("files", "check", "app:server", cwd=tmp_path, DB=database_url, PYTHONPATH=IMPORTS)
    assert done.returncode == 0, done.stdout + done.stderr
