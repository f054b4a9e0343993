"""Files are written from the models, apply on both databases, and an unchanged application needs none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.blog import app as blog
from examples.orders.server import create_server as create_orders
from examples.saas.server import create_server as create_saas
from maniflex import Config, Server
from maniflex.schema.differences import find_differences
from tests.kit.migrations import Application

SECRET = "a-secret-of-more-than-32-bytes-for-tests"
SHOP = """
class Shelf(Model):
    name: str = field(unique=True)

class Book(Model, WithDeletedAt, versioned=True):
    title: str = field(searchable=True, unique="shelf_id")
    price: Decimal = field(default=Decimal("1.50"), index=True)
    status: Literal["draft", "out"] = "draft"
    active: bool = True
    tags: list[str] = field(default_factory=list)
    shelf_id: str
    publish_at: datetime | None = scheduled(set_field="status", from_="draft", to="out")
    hide_at: datetime | None = scheduled(set_field="active", to=False)

class Flag(Model, WithIsDeleted):
    code: str = field(unique=True)

server.work.enable()
server.outbox.enable()
server.schedules.add("nightly", cron="0 2 * * *", run="report.v1")
"""


def make_server(name: str) -> Server:
    config = Config(storage="memory:")
    servers: dict[str, Callable[[], Any]] = {
        "blog": lambda: blog.server,
        "orders": lambda: create_orders(config, SECRET, "A" * 43),
        "saas": lambda: create_saas(config, SECRET),
    }
    server: Server = servers[name]()
    return server


@pytest.mark.parametrize("name", ["blog", "orders", "saas"])
async def test_an_example_right_after_its_start_differs_in_nothing(name: str, database_url: str) -> None:
    server = make_server(name)
    with server.on_database(database_url, storage="memory:"):
        async with server.lifespan(role="client"):
            pass
    with server.on_database(database_url, storage="memory:"):
        async with server.migration_targets("app:server") as targets:
            for target in targets:
                differences = await find_differences(
                    target.adapter, target.models, target.statements(target.dialect)
                )
                assert [difference.text for difference in differences] == []


def test_right_after_a_start_there_is_nothing_to_do(application: Application) -> None:
    application.write(SHOP).start()

    assert application.migrate("make", "-m", "first") == "nothing to do\n"
    assert application.files == []
    assert "ok" in application.migrate("check")


def test_the_files_make_what_a_fresh_start_makes(
    application: Application, tmp_path: Path, other_url: str
) -> None:
    application.write(SHOP).migrate("make", "-m", "first")
    [file] = application.files
    assert file.name.endswith("_first.py")

    assert "applied 1 file" in application.migrate("up")
    assert application.migrate("up") == "nothing to do\n"
    assert application.migrate("make") == "nothing to do\n"
    assert "ok" in application.migrate("check", "--replay")
    made_by_files = application.catalogue()

    application.on(other_url).start()
    assert application.catalogue() == made_by_files


def test_files_made_on_one_database_apply_on_the_other(
    application: Application, url_of_other_kind: str, other_url_of_other_kind: str
) -> None:
    application.write(SHOP).migrate("make", "-m", "first")

    application.on(url_of_other_kind)
    application.migrate("up")
    assert application.migrate("make") == "nothing to do\n"
    made_by_files = application.catalogue()

    application.on(other_url_of_other_kind).start()
    assert application.catalogue() == made_by_files


def test_a_file_takes_over_the_schedules_of_an_earlier_version(
    application: Application, other_url: str
) -> None:
    application.write(SHOP).migrate("make", "-m", "first")
    [file] = application.files
    older = "".join(
        f"    op.execute_by_database(sqlite={statement!r}, postgresql={statement!r})\n"
        for statement in (
            "DROP INDEX schedules_name_without_tenant",
            "DROP INDEX uq_schedules_tenant_id_name",
            "ALTER TABLE schedules DROP COLUMN tenant_id",
            "ALTER TABLE schedules DROP COLUMN actor_id",
            "ALTER TABLE schedule_firing DROP COLUMN tenant_id",
            "CREATE UNIQUE INDEX uq_schedules_name ON schedules (name)",
        )
    )
    head, tail = file.read_text().split("\n\ndef downgrade()")
    file.write_text(f"{head}{older}\n\ndef downgrade(){tail}")
    application.migrate("up")

    application.migrate("make", "-m", "tenants")
    application.migrate("up")

    assert "ok" in application.migrate("check", "--replay")
    assert application.migrate("make") == "nothing to do\n"
    indexes = {one for one in application.catalogue() if "uq_schedules" in one or "without_tenant" in one}
    application.on(other_url).start()
    assert indexes == {
        one for one in application.catalogue() if "uq_schedules" in one or "without_tenant" in one
    }


def test_files_go_back_to_nothing(application: Application) -> None:
    application.write(SHOP).migrate("make", "-m", "first")
    application.migrate("up")

    assert "Go on?" in application.migrate("down", "base", code=1, input="n\n")
    assert "undone 1 file" in application.migrate("down", "base", "--yes")
    assert application.catalogue() == frozenset()
    application.migrate("up")
    assert "ok" in application.migrate("check")


def test_two_files_of_one_minute_have_two_names(application: Application) -> None:
    application.write(SHOP).migrate("make", "-m", "first")
    application.migrate("up")
    application.migrate("make", "--empty", "-m", "first")
    application.migrate("make", "--empty", "-m", "first")

    assert len({file.name for file in application.files}) == 3
    assert "applied 2 files" in application.migrate("up")


def test_an_index_whose_name_tells_its_condition_goes_and_comes_back_on_the_other_database(
    application: Application, url_of_other_kind: str
) -> None:
    post = """
    class Post(Model):
        status: Literal["draft", "out", "old"] = "draft"
        hot: bool = False
        out_at: datetime | None = scheduled(set_field="status", from_="{}", to="out")
        cool_at: datetime | None = scheduled(set_field="hot", from_={}, to={})
    """
    application.write(post.format("draft", True, False)).migrate("make", "-m", "first")
    application.migrate("up")
    application.write(post.format("old", False, True)).migrate("make", "-m", "second")

    application.on(url_of_other_kind).migrate("up")

    assert "ok" in application.migrate("check", "--replay")
    application.migrate("down", "--yes")
    application.files[-1].unlink()
    application.write(post.format("draft", True, False))
    assert "ok" in application.migrate("check", "--replay")
