"""R3: `history_retention` removes old versions; the past inside the horizon stays as it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from maniflex import Model, Server, file
from maniflex.background.expired_rows import HistoryPruner
from maniflex.errors import DeclarationError
from maniflex.testing import FakeClock, client


class Page(Model, table="ret_pages", versioned=True, soft_delete=True, history_retention="30d"):
    text: str = ""


class Sheet(Model, table="ret_sheets", versioned=True):
    text: str = ""


async def test_old_versions_go_and_the_past_inside_the_horizon_stays(database_url: str) -> None:
    clock = FakeClock(datetime.now(UTC))  # ids are of that time
    server = Server(path_prefix="")
    server.register(Page, Sheet)
    async with client(server, database=database_url, clock=clock, background=False) as http:
        pages, sheets = server.db(Page), server.db(Sheet)
        quiet, busy, gone = [await pages.create(text=text) for text in ("quiet", "busy", "gone")]
        sheet = await sheets.create(text="for good")
        for number in range(3):
            clock.advance(timedelta(days=1))
            await pages.update(busy.id, text=f"busy {number}")
            await sheets.update(sheet.id, text=f"sheet {number}")
        await pages.delete(gone.id)
        clock.advance(timedelta(days=40))
        then = clock.now().isoformat().replace("+00:00", "Z")

        async def past() -> Any:
            return (await http.get(f"/ret_pages?as_of={then}&sort=id")).json()["data"]

        before = await past()
        assert [row["text"] for row in before] == ["quiet", "busy 2"]
        clock.advance(timedelta(days=1))
        await pages.update(busy.id, text="busy at last")
        await _prune(server)

        assert await past() == before
        versions = [v["version"] for v in (await http.get(f"/ret_pages/{busy.id}/history")).json()["data"]]
        assert versions == [5, 4]
        assert len((await http.get(f"/ret_pages/{quiet.id}/history")).json()["data"]) == 1
        assert len((await http.get(f"/ret_pages/{gone.id}/history")).json()["data"]) == 1
        assert len((await http.get(f"/ret_sheets/{sheet.id}/history")).json()["data"]) == 4
        await pages.update(quiet.id, text="not quiet")
        rows = (await http.get(f"/ret_pages/{quiet.id}/history")).json()["data"]
        assert [v["version"] for v in rows] == [2, 1]


async def test_the_history_of_a_record_that_is_gone_goes_when_all_of_it_is_old(database_url: str) -> None:
    clock = FakeClock(datetime.now(UTC))  # ids are of that time
    server = Server(path_prefix="", history_retention=timedelta(days=10))
    server.register(Sheet)
    async with client(server, database=database_url, clock=clock, background=False):
        old, young = [await server.db(Sheet).create(text=text) for text in ("old", "young")]
        await server.db(Sheet).delete(old.id)
        clock.advance(timedelta(days=11))
        then = clock.now() - timedelta(days=5)
        await server.db(Sheet).delete(young.id)
        await _prune(server)
        assert await server.history(Sheet).of(old.id) == []
        assert [v.version for v in await server.history(Sheet).of(young.id)] == [2, 1]
        assert (await server.history(Sheet).at(young.id, then)).text == "young"


async def _prune(server: Server) -> None:
    [pruner] = [s for s in server._durable.entry_tables.services() if isinstance(s, HistoryPruner)]
    while await pruner.tick():
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"versioned": True, "history_retention": "soon"}, "history_retention: 'soon' is not a duration"),
        ({"versioned": True, "history_retention": timedelta(days=-1)}, "is not a duration"),
        ({"versioned_diff_only": True, "history_retention": "1y"}, "needs snapshots"),
        ({"history_retention": "1y"}, "means nothing without versioned=True"),
    ],
)
def test_a_retention_that_cannot_be_kept_stops_the_start(options: dict[str, Any], message: str) -> None:
    class Wrong(Model, **options):
        text: str = ""

    server = Server()
    server.register(Wrong)
    with pytest.raises(DeclarationError, match=message):
        server.seal()


def test_a_field_that_cannot_be_read_hides_no_wrong_retention_of_another_model() -> None:
    class Photo(Model, table="ret_photos"):
        image: str | None = file(acl=cast(Any, "publik"), default=None)

    class Wrong(Model, table="ret_wrong", versioned=True, history_retention="soon"):
        text: str = ""

    server = Server()
    server.register(Photo, Wrong)
    with pytest.raises(DeclarationError) as stopped:
        server.seal()
    told = str(stopped.value)
    assert "unknown acl 'publik'" in told
    assert "Wrong: history_retention: 'soon' is not a duration" in told
