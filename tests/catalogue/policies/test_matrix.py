"""Every way to see or change a row that the policy denies, with and without `where`: A33 to A36, C25, B1."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from typing import Any

import openpyxl
import pytest

from maniflex.testing import websocket
from tests.catalogue.policies.world import (
    ADMIN,
    ANN,
    MODELS,
    Doc,
    House,
    app,
    house,
    names,
    where_not_archived,
)
from tests.kit.http import csv_cells, data_of, error_of

ALL = ["alpha", "beta", "gamma", "zeta"]
OPEN = ["alpha", "gamma"]


@pytest.fixture(params=["policy alone", "with where"])
def has_where(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "with where")


@pytest.fixture
async def world(has_where: bool, database_url: str) -> AsyncIterator[House]:
    async with house(app(where=where_not_archived if has_where else None), database_url) as made:
        yield made


async def test_a_list_leaves_denied_rows_out_and_counts_only_what_where_binds(
    world: House, has_where: bool
) -> None:
    answer = await world.get("/docs?sort=rank")
    assert names(data_of(answer)) == OPEN
    meta = answer.json()["meta"]
    if has_where:
        assert meta == {"total": 2, "page": 1, "limit": 20, "pages": 1}
    else:
        assert meta == {"page": 1, "limit": 20, "has_more": False}
    everything = await world.get("/docs?sort=rank", ADMIN)
    assert names(data_of(everything)) == ALL
    assert ("total" in everything.json()["meta"]) is has_where


async def test_pages_of_a_list_come_to_an_end(world: House, has_where: bool) -> None:
    shown: list[str] = []
    for page in (1, 2, 3, 4):
        answer = await world.get(f"/docs?sort=rank&limit=1&page={page}")
        shown += names(data_of(answer))
        if not has_where:
            assert answer.json()["meta"]["has_more"] is (page < 4)
    assert shown == OPEN


async def test_select_shows_the_fields_asked_for_though_the_policy_sees_all(world: House) -> None:
    docs = data_of(await world.get("/docs?select=title&sort=rank"))
    assert docs == [{"title": f"paper {name}"} for name in OPEN]
    one = data_of(await world.get(f"/docs/{world.ids['alpha']}?select=title"))
    assert one == {"title": "paper alpha"}
    error_of(await world.get(f"/docs/{world.ids['beta']}?select=title"), 403, "FORBIDDEN")


@pytest.mark.parametrize("backwards", [False, True])
async def test_a_walk_with_cursors_meets_every_open_row(world: House, backwards: bool) -> None:
    for limit in (1, 2, 3):
        path: str | None = f"/docs?cursor=&limit={limit}"
        shown: list[str] = []
        last = ""
        for _ in range(9):
            assert path is not None
            answer = await world.get(path)
            shown += names(data_of(answer))
            meta = answer.json()["meta"]
            last = meta.get("prev_cursor", last)
            if not meta["has_more"]:
                break
            path = f"/docs?cursor={meta['next_cursor']}&limit={limit}"
        assert shown == OPEN
        if backwards and last:
            before = names(data_of(await world.get(f"/docs?cursor={last}&limit=4")))
            assert before == OPEN[: len(before)]


async def test_a_read_of_a_denied_row_is_403_and_of_none_404(world: House) -> None:
    path = f"/docs/{world.ids['beta']}"
    error_of(await world.get(path), 403, "FORBIDDEN")
    error_of(await world.get("/docs/nothing"), 404, "NOT_FOUND")
    assert (await world.http.head(f"/api{path}", headers={"x-user": "ann"})).status_code == 403
    assert data_of(await world.get(path, ADMIN))["archived"] is True
    tag = (await world.get(path, ADMIN)).headers["etag"]
    unchanged = await world.get(path, {"x-user": "ann", "if-none-match": tag})
    error_of(unchanged, 403, "FORBIDDEN")


async def test_head_of_a_list_is_as_long_as_the_list(world: House) -> None:
    head = await world.http.head("/api/docs", headers={"x-user": "ann"})
    assert head.headers["content-length"] == (await world.get("/docs")).headers["content-length"]


async def test_a_create_is_judged_before_it_is_stored(world: House) -> None:
    for body, status in (({"archived": True}, 403), ({"archived": False}, 201)):
        made = await world.http.post(
            "/api/docs", json={"title": "paper new", **body}, headers={"x-user": "ann"}
        )
        assert made.status_code == status
    found = await world.titles("/docs?filter=title:eq:paper new", ADMIN)
    assert found == ["new"]


async def test_an_update_is_allowed_before_and_after(world: House) -> None:
    path, headers = f"/api/docs/{world.ids['alpha']}", {"x-user": "ann"}
    error_of(await world.http.patch(path, json={"archived": True}, headers=headers), 403, "FORBIDDEN")
    assert data_of(await world.get(f"/docs/{world.ids['alpha']}"))["archived"] is False
    assert (
        data_of(await world.http.patch(path, json={"title": "paper a"}, headers=headers))["title"]
        == "paper a"
    )
    denied = f"/api/docs/{world.ids['beta']}"
    for body in ({"archived": False}, {"title": "x"}, {}):
        error_of(await world.http.patch(denied, json=body, headers=headers), 403, "FORBIDDEN")
    error_of(await world.http.patch("/api/docs/none", json={"rank": 1}, headers=headers), 404, "NOT_FOUND")


async def test_a_wrong_version_of_a_denied_row_is_403(world: House) -> None:
    """Whether a tag is current would tell of the row."""
    headers = {"x-user": "ann", "if-match": '"wrong"'}
    for name, status in (("beta", 403), ("alpha", 412), ("none", 404)):
        path = f"/api/docs/{world.ids.get(name, name)}"
        assert (await world.http.patch(path, json={"rank": 1}, headers=headers)).status_code == status
        assert (await world.http.delete(path, headers=headers)).status_code == status


async def test_a_delete_is_judged_and_a_restore_shows_the_deleted_row(world: House) -> None:
    headers = {"x-user": "ann"}
    path = f"/api/docs/{world.ids['beta']}"
    error_of(await world.http.delete(path, headers=headers), 403, "FORBIDDEN")
    assert (await world.get(f"/docs/{world.ids['beta']}", ADMIN)).status_code == 200
    assert (await world.http.delete(path, headers=ADMIN)).status_code == 204
    error_of(await world.http.post(f"{path}/restore", headers=headers), 403, "FORBIDDEN")
    assert (await world.get(f"/docs/{world.ids['beta']}", ADMIN)).status_code == 404
    assert (await world.http.post(f"{path}/restore", headers=ADMIN)).status_code == 200
    own = f"/api/docs/{world.ids['gamma']}"
    assert (await world.http.delete(own, headers=headers)).status_code == 204
    assert (await world.http.post(f"{own}/restore", headers=headers)).status_code == 200
    assert (await world.http.post("/api/docs/none/restore", headers=headers)).status_code == 404


@pytest.mark.parametrize("query", ["", "&select=title"])
async def test_an_export_has_the_open_rows_only(world: House, query: str) -> None:
    cells = csv_cells(await world.get(f"/docs/export?sort=rank{query}"))
    place = cells[0].index("title")
    assert [row[place] for row in cells[1:]] == [f"paper {name}" for name in OPEN]
    assert ("rank" in cells[0]) is (not query)
    answer = await world.get(f"/docs/export?format=xlsx&sort=rank{query}")
    sheet: Any = openpyxl.load_workbook(io.BytesIO(answer.content)).active
    rows = [[cell.value for cell in row] for row in sheet.iter_rows()]
    place = rows[0].index("title")
    assert [row[place] for row in rows[1:]] == [f"paper {name}" for name in OPEN]


COUNT = json.dumps({"select": [{"op": "count", "as": "n"}]})


async def test_an_aggregate_needs_where(world: House, has_where: bool) -> None:
    answer = await world.get(f"/docs/aggregate?aggregate={COUNT}")
    if has_where:
        assert data_of(answer) == [{"n": 2}]
        assert data_of(await world.get(f"/docs/aggregate?aggregate={COUNT}", ADMIN)) == [{"n": 4}]
    else:
        error_of(answer, 403, "FORBIDDEN")
    head = await world.http.head(f"/api/docs/aggregate?aggregate={COUNT}", headers={"x-user": "ann"})
    assert head.status_code == (200 if has_where else 403)


async def test_a_search_needs_where(world: House, has_where: bool) -> None:
    for path in (
        "/docs?q=hidden",
        "/docs/export?q=hidden",
        "/search?q=hidden&models=Doc",
        "/search?q=hidden",
    ):
        answer = await world.get(path)
        if has_where:
            assert answer.status_code == 200, path
            assert "hidden" not in answer.text
        else:
            error_of(answer, 403, "FORBIDDEN")
    if has_where:
        assert {hit["id"] for hit in data_of(await world.get("/search?q=paper"))} == {
            world.ids["alpha"],
            world.ids["gamma"],
        }
        assert await world.titles("/docs?q=paper&sort=rank") == OPEN
        assert len(data_of(await world.get("/search?q=paper", ADMIN))) == 4


async def test_included_rows_that_are_denied_are_absent(world: House) -> None:
    [shelf] = data_of(await world.get("/shelves?include=docs,cover"))
    assert sorted(names(shelf["docs"])) == OPEN
    assert shelf.get("cover") is None
    one = data_of(await world.get(f"/shelves/{world.ids['shelf']}?include=docs.notes,cover.notes"))
    assert sorted(names(one["docs"])) == OPEN
    assert sorted(note["text"] for doc in one["docs"] for note in doc["notes"]) == ["on alpha", "on gamma"]
    assert "on beta" not in json.dumps(one)
    whole = data_of(await world.get(f"/shelves/{world.ids['shelf']}?include=docs,cover", ADMIN))
    assert (len(whole["docs"]), names([whole["cover"]])) == (4, ["beta"])


async def test_a_denied_parent_is_absent_and_nothing_below_it_shows(world: House) -> None:
    notes = data_of(await world.get("/notes?include=doc.shelf&sort=text"))
    assert [names([note["doc"]]) if note.get("doc") else None for note in notes] == [
        ["alpha"],
        None,
        ["gamma"],
        None,
    ]
    [tag] = data_of(await world.get("/tags?include=docs.below"))
    assert sorted(names(tag["docs"])) == OPEN
    for doc in tag["docs"]:
        assert sorted(names(doc["below"])) in ([], ["gamma"])


async def test_records_of_its_own_kind_are_judged_along(world: House) -> None:
    alpha = data_of(await world.get(f"/docs/{world.ids['alpha']}?include=below.parent"))
    assert names(alpha["below"]) == ["gamma"]
    assert names([alpha["below"][0]["parent"]]) == ["alpha"]
    docs = data_of(await world.get("/docs?include=below,shelf,notes&sort=rank"))
    assert names(docs) == OPEN
    assert names(docs[0]["below"]) == ["gamma"]
    assert docs[1]["notes"][0]["text"] == "on gamma"


@pytest.mark.parametrize(
    "path",
    [
        "/shelves?filter=docs.title:contains:hidden",
        "/shelves?filter=cover.archived:eq:true",
        "/shelves/export?filter=docs.title:contains:hidden",
        "/notes?filter=doc.title:contains:hidden",
        "/tags?filter=docs.title:contains:hidden",
        "/docs?filter=parent.title:contains:hidden",
        "/docs?filter=below.title:contains:hidden",
        "/notes?filter=doc.words.de:contains:hidden",
        "/notes?filter=doc.words:contains:hidden&locale=de",
        "/shelves/export?filter=docs.words.de:contains:hidden",
        "/docs?filter=parent.words.de:contains:hidden&sort=words.de",
        "/notes/aggregate?aggregate="
        + json.dumps(
            {"select": [{"op": "count", "as": "n"}], "where": [{"field": "doc.archived", "value": True}]}
        ),
    ],
)
async def test_a_filter_across_denied_rows_tells_nothing_of_them(
    world: House, has_where: bool, path: str
) -> None:
    answer = await world.get(path)
    if not has_where:
        error_of(answer, 403, "FORBIDDEN")
        assert (await world.http.head(f"/api{path}", headers={"x-user": "ann"})).status_code == 403
    elif "/export" in path:
        assert len(csv_cells(answer)) == 1
    else:
        assert data_of(answer) in ([], [{"n": 0}])


@pytest.mark.parametrize("name", ["title", "words.de"])
async def test_a_sort_across_denied_rows_tells_nothing_of_them(
    world: House, has_where: bool, name: str
) -> None:
    answer = await world.get(f"/notes?sort=doc.{name}:desc")
    if has_where:
        texts = [note["text"] for note in data_of(answer)]
        assert texts.index("on gamma") < texts.index("on alpha")
    else:
        error_of(answer, 403, "FORBIDDEN")


async def test_operations_of_a_batch_are_judged_as_requests_are(world: House) -> None:
    headers, beta = {"x-user": "ann"}, f"/docs/{world.ids['beta']}"
    denied: list[dict[str, object]] = [
        {"method": "GET", "path": beta},
        {"method": "PATCH", "path": beta, "body": {"title": "x"}},
        {"method": "DELETE", "path": beta},
        {"method": "POST", "path": "/docs", "body": {"title": "paper x", "archived": True}},
        {"method": "PATCH", "path": f"/docs/{world.ids['alpha']}", "body": {"archived": True}},
    ]
    new = {"method": "POST", "path": "/docs", "body": {"title": "paper new"}}
    for operation in denied:
        body = {"operations": [new, operation]}
        answer = await world.http.post("/api/batch", json=body, headers=headers)
        assert error_of(answer, 403, "BATCH_FAILED")["details"][0]["index"] == 1
    listed = {"operations": [{"method": "GET", "path": "/docs?sort=rank"}]}
    [outcome] = data_of(await world.http.post("/api/batch", json=listed, headers=headers))
    assert names(outcome["data"]) == OPEN


async def test_nested_records_are_judged_as_single_ones_are(world: House) -> None:
    headers, shelf = {"x-user": "ann"}, f"/api/shelves/{world.ids['shelf']}"
    for change in (
        {"update": [{"id": world.ids["beta"], "title": "x"}]},
        {"update": [{"id": world.ids["alpha"], "archived": True}]},
        {"delete": [world.ids["beta"]]},
        {"create": [{"title": "paper x", "archived": True}]},
    ):
        refused = await world.http.patch(shelf, json={"docs": change}, headers=headers)
        error_of(refused, 403, "FORBIDDEN")
    on_denied = f"/api/docs/{world.ids['beta']}"
    for record_id in (world.ids["beta note"], "none"):
        refused = await world.http.patch(on_denied, json={"notes": {"delete": [record_id]}}, headers=headers)
        error_of(refused, 403, "FORBIDDEN")
    changed = await world.http.patch(
        shelf, json={"docs": {"create": [{"title": "paper new"}]}}, headers=headers
    )
    assert sorted(names(data_of(changed)["docs"])) == ["alpha", "gamma", "new"]


async def test_a_stream_tells_of_open_rows_alone_also_of_what_was_missed(
    has_where: bool, database_url: str
) -> None:
    server = app(where=where_not_archived if has_where else None)
    server.events.emit(*MODELS)
    server.realtime.enable()
    async with house(server, database_url) as world:
        await world.http.delete(f"/api/docs/{world.ids['gamma']}", headers=ADMIN)
        await world.http.delete(f"/api/docs/{world.ids['zeta']}", headers=ADMIN)
        await server.events.drain()
        start = f"{(await server.events.position()).partition(':')[0]}:0"
        heard = {}
        for caller in (ANN, ADMIN):
            async with websocket(server, headers=caller) as ws:
                await ws.subscribe("doc.*", after=start)
                await server.db(Doc).create(title="paper end", rank=99)
                titles: list[str] = []
                while not titles or titles[-1] != "paper end":
                    message = await ws.receive()
                    if message["op"] == "event":
                        titles.append(message["data"]["data"]["title"])
                        assert "pin" not in message["data"]["data"]
                heard[caller["x-user"]] = titles
        assert not any("hidden" in title for title in heard["ann"])
        assert sum("hidden" in title for title in heard["root"]) >= 3
        assert heard["ann"].count("paper alpha") == 1
