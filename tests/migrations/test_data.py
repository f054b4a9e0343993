"""Data steps of files, and databases that earlier releases have made."""

from __future__ import annotations

import asyncio
import gzip
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import asyncpg

from tests.kit.migrations import Application
from tests.migrations.test_chain import SHOP

KEPT = Path(__file__).parent / "kept"
PAGE = """
class Page(Model):
    title: str
    price: Decimal = Decimal("1.50")
"""
GROWN = (
    PAGE + "    slug: str = field(default_factory=lambda: 'made')\n    label: str = ''\n    note: str = ''\n"
)
STEPS = """
    op.backfill("pages", set={"label": lambda row: f"{row['title']} {row['price'] * 2}"}, batch=2)
    op.run("Page", annotate)


async def annotate(pages):
    for page in await pages.list():
        await pages.update(page.id, note=page.label.upper())
    await pages.create(title="by the file", label="new")


def downgrade"""
KILLED_ONCE = """
    op.run("Page", create_and_die)


async def create_and_die(pages):
    import os, pathlib

    await pages.create(title="once")
    if not pathlib.Path("killed").exists():
        pathlib.Path("killed").touch()
        os.kill(os.getpid(), 9)


def downgrade"""


def test_data_steps_run_in_order_and_see_typed_values(application: Application) -> None:
    application.write(PAGE).migrate("make", "-m", "first")
    application.migrate("up")

    async def create() -> None:
        server = application.server
        async with server.lifespan(role="client"):
            for n in range(5):
                await server.db("Page").create(title=f"p{n}")

    asyncio.run(create())
    application.write(GROWN).migrate("make", "-m", "grow")
    path = application.files[-1]
    path.write_text(path.read_text().replace("\n\ndef downgrade", STEPS, 1))
    assert 'op.factory("Page.slug")' in path.read_text()

    assert "applied 1 file" in application.migrate("up")

    rows = application.sql("SELECT title, slug, label, note FROM pages ORDER BY title")
    assert [tuple(row) for row in rows][:2] == [
        ("by the file", "made", "new", ""),
        ("p0", "made", "p0 3.00", "P0 3.00"),
    ]
    assert len(rows) == 6
    assert "ok" in application.migrate("check")


def test_an_up_that_is_killed_inside_a_file_is_finished_by_the_next(application: Application) -> None:
    application.write(PAGE).migrate("make", "-m", "first")
    application.migrate("up")
    application.write(GROWN).migrate("make", "-m", "grow")
    path = application.files[-1]
    path.write_text(path.read_text().replace("\n\ndef downgrade", KILLED_ONCE, 1))
    command = [sys.executable, "-m", "maniflex", "migrate", "up", "app:server"]

    killed = subprocess.run(command, cwd=application.directory, capture_output=True, check=False)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert "grow" in application.migrate("status")
    assert application.sql("SELECT title FROM pages") == []
    assert "applied 1 file" in application.migrate("up")
    assert [tuple(row) for row in application.sql("SELECT title FROM pages")] == [("once",)]
    assert "ok" in application.migrate("check")


def test_a_data_step_that_fails_leaves_the_file_unapplied(application: Application) -> None:
    application.write(PAGE).migrate("make", "-m", "first")
    application.migrate("up")
    application.migrate("make", "--empty", "-m", "data")
    path = application.files[-1]
    body = """    async def fail(pages):
        await pages.create(title="x")
        await pages.read("nobody")

    op.run("Page", fail)"""
    path.write_text(path.read_text().replace("    pass", body, 1))

    assert "operation 1 of 1, run code" in application.migrate("up", code=1)

    assert application.sql("SELECT 1 FROM pages") == []
    assert "pending" in application.migrate("status") or "interrupted" in application.migrate("status")


def load_kept(application: Application) -> None:
    """The database that release 0.1 has made of the shop, with a few rows."""
    if application.url.startswith("sqlite"):
        path = Path(application.url.removeprefix("sqlite:///"))
        path.write_bytes(gzip.decompress((KEPT / "release_0_1.db.gz").read_bytes()))
        return

    async def load() -> None:
        connection = await asyncpg.connect(application.url)
        await connection.execute((KEPT / "release_0_1.sql").read_text())
        await connection.close()

    asyncio.run(load())


def test_a_database_of_an_earlier_release_is_started_checked_and_given_a_baseline(
    application: Application,
) -> None:
    load_kept(application)
    application.write(SHOP)

    application.start()  # which adds the tables and columns that came since
    assert "ok" in application.migrate("check")
    assert application.migrate("make") == "nothing to do\n"
    application.migrate("make", "--baseline")
    assert "ok" in application.migrate("check")

    async def prices() -> list[Decimal]:
        server = application.server
        async with server.lifespan(role="client"):
            return [book.price for book in await server.db("Book").list(sorts="price")]

    assert asyncio.run(prices()) == [Decimal(9), Decimal("10.50"), Decimal(100)]
