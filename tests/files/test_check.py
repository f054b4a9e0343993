"""`maniflex files check`, `sweep` and `adopt`, from code and from a terminal."""

from __future__ import annotations

from pathlib import Path

from maniflex import Server
from maniflex.storage import FileMeta, LocalStorage
from tests.kit.files import PNG, Album, an_archive, in_pieces
from tests.kit.processes import IMPORTS, run_command

PATHS = {"PYTHONPATH": IMPORTS}
APP = """
import os
from maniflex import Server
from tests.kit.files import Album

server = Server(os.environ["DB"], storage="file:files")
server.register(Album)
"""


async def test_a_server_whose_files_fit_is_clean(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        cover, scan, free, gone = [await archive.put() for _ in range(4)]
        await archive.server.db(Album).create(cover=cover, scans=[scan])
        await archive.files.delete(gone)

        report = await archive.files.check()

        assert report.is_clean
        assert await archive.objects() == {cover, scan, free, gone}


async def test_everything_that_does_not_fit_is_named(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        lost, linked, dangling, unlinked = [await archive.put() for _ in range(4)]
        await archive.storage.store("orphan", in_pieces(PNG), FileMeta("o"))
        await archive.storage.delete(lost)
        await archive.server.db(Album).create(cover=linked)
        two = await archive.server.db(Album).create(cover=dangling)
        three = await archive.server.db(Album).create()
        await archive.server.raw_exec("DELETE FROM albums WHERE id = ?", two.id)
        await archive.server.raw_exec("UPDATE albums SET cover = ? WHERE id = ?", unlinked, three.id)

        report = await archive.files.check()

    assert (report.orphans, report.missing) == (["orphan"], [lost])
    assert [line.partition(":")[0] for line in report.dangling] == [dangling]
    assert [line.partition(":")[0] for line in report.unlinked] == [unlinked]
    assert not report.is_clean


async def test_objects_from_before_are_taken_in_with_their_records(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        for key in ("old/a.png", "old/b.png", "other/c.png"):
            await archive.storage.store(key, in_pieces(PNG), FileMeta(key[-5:], "image/png"))
        album = await archive.server.db(Album).create()
        await archive.server.raw_exec("UPDATE albums SET cover = 'old/a.png' WHERE id = ?", album.id)

        adoption = await archive.files.adopt("old/")

        assert (adoption.files, adoption.links) == (2, 1)
        assert (await archive.files.check()).orphans == ["other/c.png"]
        assert (await archive.files.adopt("old/")) == type(adoption)(0, 0)
        await archive.server.db(Album).delete(album.id)
        assert await archive.swept() == {"old/b.png", "other/c.png"}
        taken = await archive.http.post("/api/albums", json={"cover": "old/b.png"}, headers={"x-tenant": "b"})
        assert taken.status_code == 201


async def test_the_commands_say_what_they_found(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    server = Server(database_url, storage=LocalStorage(tmp_path / "files"))
    server.register(Album)
    async with server.lifespan(role="client"):
        given_up = await server.files.store(PNG, filename="a.png")
        await server.files.delete(given_up.key)
        await server.files.desk.storage.store("old/b.png", in_pieces(PNG), FileMeta("b.png"))

    def command(name: str, *options: str) -> tuple[int, str]:
        done = run_command("files", name, "app:server", *options, cwd=tmp_path, DB=database_url, **PATHS)
        return done.returncode, done.stdout

    code, output = command("check")
    assert (code, "object without a row: old/b.png" in output) == (1, True), output
    assert command("sweep")[1].startswith("1 files removed, 0 failed")
    assert command("adopt", "--prefix", "old/")[1].startswith("1 files taken in, 0 links made\n")
    code, output = command("check")
    assert code == 0
    assert output.startswith("0 orphans, 0 missing, 0 dangling, 0 unlinked\n")  # and a warning of open routes


async def test_a_sweep_of_everything_or_of_a_part(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)

    async def give_up() -> None:
        server = Server(sqlite_url, storage=LocalStorage(tmp_path / "files"))
        server.register(Album)
        async with server.lifespan(role="client"):
            await server.files.delete((await server.files.store(PNG, filename="a.png")).key)

    def sweep(*options: str) -> tuple[int, list[str], str]:
        done = run_command("sweep", "app:server", *options, cwd=tmp_path, DB=sqlite_url, **PATHS)
        return done.returncode, [line for line in done.stdout.splitlines() if "failed" in line], done.stderr

    scheduled = "0 deleted, 0 updated, 0 skipped, 0 failed"
    files = "{} files removed, 0 failed, 0 remains of killed uploads removed"
    await give_up()
    assert sweep("--only", "scheduled")[:2] == (0, [scheduled])
    assert sweep("--only", "files")[:2] == (0, [files.format(1)])
    await give_up()
    assert sweep()[:2] == (0, [scheduled, files.format(1)])
    assert sweep("--only", "files, scheduled")[:2] == (0, [scheduled, files.format(0)])
    code, lines, mistake = sweep("--only", "files,nonsense")
    assert (code, lines) == (2, [])
    assert "'nonsense' is none of scheduled, files" in mistake


def test_a_server_without_a_storage_has_nothing_to_check(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text('from maniflex import Server\nserver = Server("sqlite:///a.db")\n')

    done = run_command("files", "check", "app:server", cwd=tmp_path, **PATHS)

    assert (done.returncode, "the server has no storage of files" in done.stderr) == (1, True)
