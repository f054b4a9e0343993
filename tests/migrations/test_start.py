"""The start on a database that files keep, and commands that report where it stands."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner

from maniflex.cli import main
from maniflex.errors import DeclarationError
from maniflex.testing import client
from tests.kit.migrations import Application
from tests.kit.waiting import eventually

NOTE = """
class Note(Model):
    text: str = field(searchable=True)
"""
MORE = NOTE + '    colour: str = ""\n'


@pytest.fixture
def notes(application: Application) -> Application:
    application.write(NOTE).migrate("make", "-m", "first")
    application.migrate("up")
    return application


def stopped(application: Application) -> str:
    with pytest.raises(DeclarationError) as error:
        application.start()
    return str(error.value)


def test_without_auto_migrate_an_empty_database_stops_the_start_and_stays_empty(
    application: Application,
) -> None:
    application.write(NOTE, auto_migrate=False)

    assert "`maniflex migrate up app:server`" in stopped(application)
    assert application.catalogue() == frozenset()


def test_pending_files_stop_the_start_until_they_are_applied(notes: Application) -> None:
    notes.write(MORE).migrate("make", "-m", "colour")
    before = notes.catalogue()

    message = stopped(notes)

    assert "_colour.py" in message
    assert "`maniflex migrate up app:server`" in message
    assert notes.catalogue() == before
    notes.write(MORE, migrate_on_start=True).start()
    assert "ok" in notes.migrate("check")


def test_the_start_alters_nothing_where_files_keep_the_database(
    notes: Application, caplog: pytest.LogCaptureFixture
) -> None:
    before = notes.catalogue()
    notes.write(MORE)

    with caplog.at_level(logging.WARNING):
        notes.start()
    assert "notes' has no column 'colour'; write a migration with" in caplog.text
    assert notes.catalogue() == before

    notes.write(MORE, auto_migrate=False)
    assert "the models are ahead of the migrations" in stopped(notes)
    assert notes.catalogue() == before


def test_an_older_release_starts_on_a_newer_database(
    notes: Application, caplog: pytest.LogCaptureFixture
) -> None:
    notes.write(MORE).migrate("make", "-m", "colour")
    notes.migrate("up")
    notes.files[-1].unlink()
    notes.write(NOTE, auto_migrate=False)

    with caplog.at_level(logging.WARNING):
        notes.start()

    assert "a newer release may have applied it" in caplog.text

    async def create() -> None:
        server = notes.server
        async with server.lifespan(role="client"):
            await server.db("Note").create(text="old code")

    asyncio.run(create())
    assert [tuple(row) for row in notes.sql("SELECT text, colour FROM notes")] == [("old code", "")]


def test_files_of_migrate_on_start_make_an_empty_database(notes: Application, other_url: str) -> None:
    expected = notes.catalogue()

    notes.on(other_url).write(NOTE, migrate_on_start=True, auto_migrate=False).start()

    assert notes.catalogue() == expected
    assert "ok" in notes.migrate("check")


def test_status_names_changed_missing_and_pending_files(notes: Application) -> None:
    notes.migrate("make", "--empty", "-m", "second")
    notes.files[0].write_text(notes.files[0].read_text() + "\n# a word\n")

    output = notes.migrate("status")

    assert "applied, CHANGED since" in output
    assert "pending" in output
    [report] = json.loads(notes.migrate("status", "--json"))
    assert [file["state"] for file in report["files"]] == ["applied", "pending"]
    assert [file["changed"] for file in report["files"]] == [True, False]
    assert "was changed after it was applied" in notes.migrate("check", code=1)


def test_two_ends_are_merged(notes: Application) -> None:
    notes.migrate("make", "--empty", "-m", "mine")
    mine = notes.files[-1]
    theirs = mine.with_name(mine.name.replace("mine", "theirs"))
    hidden = mine.rename(mine.with_suffix(".txt"))
    notes.migrate("make", "--empty", "-m", "theirs")
    shutil.move(hidden, mine)

    assert "several ends" in notes.migrate("make", code=1)
    assert "several ends" in notes.migrate("status")
    assert "wrote" in notes.migrate("merge")
    assert "applied 3 files" in notes.migrate("up")
    assert "ok" in notes.migrate("check")
    assert theirs.parent == mine.parent


def test_a_database_that_the_start_has_made_gets_a_baseline(application: Application) -> None:
    application.write(NOTE).start()
    expected = application.catalogue()

    assert "wrote" in application.migrate("make", "--baseline")
    assert application.migrate("up") == "nothing to do\n"
    assert application.catalogue() == expected
    assert "ok" in application.migrate("check", "--replay")
    assert "already" in application.migrate("make", "--baseline", code=1)


def test_a_database_that_the_start_has_made_is_stamped_rather_than_migrated(
    notes: Application, other_url: str
) -> None:
    notes.on(other_url).start()

    assert "at no revision; apply the files first with `maniflex migrate up app:server`" in notes.migrate(
        "make", code=1
    )
    notes.migrate("stamp", "head")
    assert "ok" in notes.migrate("check")


def test_sql_and_dry_run_change_nothing(notes: Application) -> None:
    before = notes.catalogue()
    notes.write(NOTE + "    size: int = field(default=0, index=True)\n").migrate("make", "-m", "size")

    statements = notes.migrate("up", "--sql")
    words = notes.migrate("up", "--dry-run")

    assert "ADD COLUMN size BIGINT DEFAULT 0 NOT NULL;" in statements
    assert "add column notes.size" in words
    assert notes.catalogue() == before
    assert "add column notes.size" in notes.migrate("show", "head")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["up", "nowhere"], 1, "nowhere"),
        (["show", "nowhere"], 1, "nowhere"),
        (["up", "--tries", "0"], 2, "--tries"),
        (["up", "--lock-timeout", "soon"], 2, "--lock-timeout"),
        (["check", "--database", "other"], 2, "there are: default"),
    ],
)
def test_a_mistake_is_one_sentence(notes: Application, words: list[str], code: int, sentence: str) -> None:
    assert sentence in notes.migrate(*words, code=code)


def test_a_file_with_a_mistake_is_named(notes: Application) -> None:
    notes.migrate("make", "--empty", "-m", "broken")
    path = notes.files[-1]
    text = path.read_text()

    from_alembic = text.replace("    pass", "    from alembic import op; op.batch_alter_table('notes')", 1)
    path.write_text(from_alembic)
    assert "use op.rebuild_table" in notes.migrate("up", code=1)
    path.write_text(text.replace("    pass", "    op.add_colum('notes')", 1))
    assert f"{path.name}: AttributeError" in notes.migrate("up", code=1)
    path.write_text(text + "\nnot python at all\n")
    assert path.name in notes.migrate("up", code=1)


def test_several_databases_have_files_of_their_own(tmp_path: Path, application: Application) -> None:
    audit = f"sqlite:///{tmp_path}/audit.db"
    application.write(NOTE + f"\nclass Entry(Model, database={audit!r}):\n    text: str\n")

    application.migrate("make", "-m", "first")
    assert (tmp_path / "migrations" / "default" / "versions").is_dir()
    assert (tmp_path / "migrations" / "audit" / "versions").is_dir()
    assert "audit: applied 1 file" in application.migrate("up")
    assert "ok" in application.migrate("check", "--database", "audit")
    assert "ok" in application.migrate("check")


def test_alembic_s_own_command_works_on_the_same_files(notes: Application) -> None:
    assert "alembic.ini" in notes.migrate("init", "--alembic")
    notes.migrate("make", "--empty", "-m", "second")
    alembic = [sys.executable, "-m", "alembic"]

    up = subprocess.run([*alembic, "upgrade", "head"], cwd=notes.directory, capture_output=True, text=True)

    assert up.returncode == 0, up.stderr
    assert "ok" in notes.migrate("check")
    down = subprocess.run([*alembic, "downgrade", "-1"], cwd=notes.directory, capture_output=True, text=True)
    assert down.returncode == 0, down.stderr
    assert "pending" in notes.migrate("status")


async def test_a_server_whose_models_are_ahead_is_not_ready_until_the_migration_is_there(
    notes: Application,
) -> None:
    server = notes.write(MORE).server
    async with client(server, database=None) as http:
        refused = await http.get("/ready")
        assert refused.status_code == 503
        assert "`maniflex migrate make app:server`" in refused.json()["schema"]
        assert (await http.get("/live")).status_code == 200

        await asyncio.to_thread(notes.migrate, "make", "-m", "colour")
        await asyncio.to_thread(notes.migrate, "up")

        async def is_ready() -> bool:
            return (await http.get("/ready")).status_code == 200

        await eventually(is_ready, "the server to see the column", patience=60)


async def test_a_server_that_cannot_look_whether_it_is_behind_is_still_not_ready(
    tmp_path: Path, postgres_url: str
) -> None:
    application = Application(tmp_path, postgres_url)
    application.write(NOTE)
    await asyncio.to_thread(application.migrate, "make", "-m", "first")
    await asyncio.to_thread(application.migrate, "up")
    server = application.write(MORE, health_timeout=0.5).server
    async with client(server, database=None) as http:
        other = await asyncpg.connect(postgres_url)
        try:
            # The catalogue of this database alone.
            await other.execute("BEGIN; LOCK TABLE pg_attrdef IN ACCESS EXCLUSIVE MODE")
            refused = await http.get("/ready")
        finally:
            await other.close()
        assert refused.status_code == 503
        assert "`maniflex migrate make app:server`" in refused.json()["schema"]


def test_check_says_without_a_database_what_no_file_makes(notes: Application) -> None:
    def check(code: int) -> str:
        with notes.loaded():
            result = CliRunner().invoke(main, ["check", "app:server"])
        assert result.exit_code == code, result.output
        return result.output

    assert "ok: " in check(0)
    notes.write(MORE + "\nclass Tag(Model):\n    name: str\n")
    page = check(1)
    assert "Note.colour: no migration file adds the column 'colour' to 'notes'" in page
    assert "Tag: no migration file makes the table 'tags'" in page
    assert "`maniflex migrate make app:server`" in page


@pytest.mark.parametrize("settings", [{}, {"strict": True}, {"migrate_on_start": True}])
async def test_the_test_client_makes_its_tables_whatever_the_settings_say(
    tmp_path: Path, settings: dict[str, bool]
) -> None:
    application = Application(tmp_path, "sqlite:///elsewhere.db").write(NOTE, auto_migrate=False, **settings)
    async with client(application.server) as http:
        made = await http.post("/api/notes", json={"text": "a"})
        assert made.status_code == 201, made.text
    assert not (tmp_path / "elsewhere.db").exists()
