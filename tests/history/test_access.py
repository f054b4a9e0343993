"""H11-H13: who may read the history of a record, and that nobody else does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from maniflex import AuthInfo, Context, Server
from maniflex.errors import NotFound
from maniflex.middleware import auth, db, response
from tests.history.world import Invoice, Ledger, Line, World, a_world, as_tenant

A, B = as_tenant("a"), as_tenant("b")
OPERATOR = as_tenant("ops", "operator")


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with a_world(database_url, tenants=True) as world:
        yield world


async def _records(world: World) -> dict[str, str]:
    """Records of tenant a: there, marked as deleted, and removed."""
    made = {}
    for name in ("there", "marked"):
        answer = await world.http.post("/hist_invoices", json={"number": name}, headers=A)
        made[name] = answer.json()["data"]["id"]
        await world.http.patch(f"/hist_invoices/{made[name]}", json={"stars": 1}, headers=A)
    await world.http.delete(f"/hist_invoices/{made['marked']}", headers=A)
    for name in ("line", "removed"):
        line = await world.http.post("/hist_lines", json={"invoice_id": made["there"]}, headers=A)
        made[name] = line.json()["data"]["id"]
    await world.http.delete(f"/hist_lines/{made['removed']}", headers=A)
    ledger = await world.http.post("/hist_ledger", json={"entry": "x"}, headers=A)
    made["ledger"] = ledger.json()["data"]["id"]
    return made


async def test_a_tenant_sees_its_own_histories(world: World) -> None:
    made = await _records(world)
    for table, name in (
        ("hist_invoices", "there"),
        ("hist_invoices", "marked"),
        ("hist_lines", "line"),
        ("hist_ledger", "ledger"),
    ):
        answer = await world.http.get(f"/{table}/{made[name]}/history", headers=A)
        assert answer.status_code == 200, (table, answer.text)
        assert answer.json()["data"]
    flat = (await world.http.get("/invoice_histories", headers=A)).json()
    assert {v["record_id"] for v in flat["data"]} == {made["there"], made["marked"]}
    assert flat["meta"]["total"] == 5
    lines = (await world.http.get("/line_histories", headers=A)).json()["data"]
    assert {v["record_id"] for v in lines} == {made["line"]}  # whose the removed one was cannot be told
    everything = (await world.http.get("/line_histories", headers=OPERATOR)).json()["data"]
    assert {v["record_id"] for v in everything} == {made["line"], made["removed"]}


async def test_another_tenant_sees_nothing_on_any_surface(world: World) -> None:
    made = await _records(world)
    own = await world.http.get("/invoice_histories", headers=A)
    row = own.json()["data"][0]["id"]
    moment = world.tick().isoformat().replace("+00:00", "Z")
    for path in (
        f"/hist_invoices/{made['there']}/history",
        f"/hist_invoices/{made['there']}/history/1",
        f"/hist_invoices/{made['marked']}/history",
        f"/hist_invoices/{made['marked']}/history/1",
        f"/hist_invoices/{made['there']}?as_of={moment}",
        f"/hist_ledger/{made['ledger']}/history",
        f"/hist_ledger/{made['ledger']}?as_of={moment}",
        f"/hist_lines/{made['line']}/history",
        f"/hist_lines/{made['line']}?as_of={moment}",
        f"/invoice_histories/{row}",
    ):
        foreign, missing = (
            await world.http.get(path, headers=B),
            await world.http.get(path.replace(made["there"], "none"), headers=B),
        )
        assert foreign.status_code == missing.status_code == 404, path
        assert foreign.json() == missing.json()
        assert (await world.http.head(path, headers=B)).status_code == 404, path
    for path in (
        "/invoice_histories",
        f"/invoice_histories?filter=record_id:eq:{made['there']}",
        "/invoice_histories?filter[0]=version:gte:0&filter[0]=version:lt:9",
        "/line_histories",
        "/ledger_histories",
        f"/hist_invoices?as_of={moment}",
        f"/hist_lines?as_of={moment}",
    ):
        answer = await world.http.get(path, headers=B)
        assert (answer.status_code, answer.json()["data"], answer.json()["meta"]["total"]) == (200, [], 0), (
            path
        )
    back = await world.http.post(f"/hist_invoices/{made['there']}/history/1/restore", headers=B)
    assert back.status_code == 404
    for path in (
        "/invoice_histories",
        f"/hist_invoices/{made['there']}/history",
        f"/hist_invoices?as_of={moment}",
    ):
        assert (await world.http.get(path)).status_code == 403, path  # nobody's tenant


async def test_scoped_code_sees_what_its_caller_would(world: World) -> None:
    made = await _records(world)
    async with world.server.scoped(auth=AuthInfo(user_id="u", tenant_id="b")):
        assert await world.server.db("InvoiceHistory").list() == []
        assert await world.server.history(Invoice).of(made["there"]) == []
        with pytest.raises(NotFound):
            await world.server.history(Invoice).at(made["there"], world.clock.now())
        with pytest.raises(NotFound):
            await world.server.history(Ledger).at(made["ledger"], world.clock.now())
        with pytest.raises(NotFound):
            await world.server.history(Invoice).revert(made["there"], 1)
    async with world.server.scoped(auth=AuthInfo(user_id="u", tenant_id="a")):
        assert len(await world.server.history(Invoice).of(made["there"])) == 2
        assert await world.server.db("InvoiceHistory").count() == 5
    assert len(await world.server.history(Line).of(made["removed"])) == 2


PATHS = (
    "/hist_invoices/{id}/history",
    "/hist_invoices/{id}/history/1",
    "/invoice_histories",
    "/invoice_histories/{row}",
    "/hist_invoices/{id}?as_of={moment}",
    "/hist_invoices?as_of={moment}",
)


@pytest.mark.parametrize(
    ("models", "operations", "refused"),
    [
        ([Invoice], ["read"], set(PATHS)),
        ([Invoice], ["read_history"], set(PATHS)),
        (["InvoiceHistory"], ["read_history"], set(PATHS)),
        (["InvoiceHistory"], None, set(PATHS)),
        (None, ["read"], set(PATHS)),
        ([Invoice], ["list"], {PATHS[2], PATHS[3], PATHS[5]}),
        ([Invoice], ["update"], set()),
    ],
)
async def test_a_guard_refuses_every_way_it_covers(
    database_url: str, models: Any, operations: Any, refused: set[str]
) -> None:
    async def guard(ctx: Context, next: Callable[[], Awaitable[None]]) -> None:
        ctx.abort(418, "GUARDED", "no")

    def prepare(server: Server) -> None:
        server.pipeline.auth.register(guard, models=models, operations=operations)

    async with a_world(database_url, prepare=prepare) as world:
        invoice = await world.server.db(Invoice).create(number="a")
        [row] = await world.versions(Invoice)
        moment = world.tick().isoformat().replace("+00:00", "Z")
        statuses = {}
        for path in PATHS:
            url = path.format(id=invoice.id, row=row.id, moment=moment)
            answers = {(await world.http.request(method, url)).status_code for method in ("GET", "HEAD")}
            assert len(answers) == 1, path
            [statuses[path]] = answers
        assert {path for path, status in statuses.items() if status == 418} == refused
        assert {status for path, status in statuses.items() if path not in refused} <= {200}


async def test_a_guard_of_histories_stands_before_the_way_back(database_url: str) -> None:
    async def guard(ctx: Context, next: Callable[[], Awaitable[None]]) -> None:
        ctx.abort(418, "GUARDED", "no")

    def prepare(server: Server) -> None:
        server.pipeline.auth.register(guard, models=["InvoiceHistory"])

    async with a_world(database_url, prepare=prepare) as world:
        invoice = await world.server.db(Invoice).create(number="a")
        assert (await world.http.patch(f"/hist_invoices/{invoice.id}", json={})).status_code == 200
        back = await world.http.post(f"/hist_invoices/{invoice.id}/history/1/restore")
        assert back.status_code == 418


KEYS = {"a-key-of-the-tests-1": AuthInfo(user_id="ann")}


@pytest.mark.parametrize(
    ("models", "operations", "open_paths"),
    [
        ([Invoice], ["read"], {PATHS[0], PATHS[1], PATHS[4]}),
        ([Invoice], ["list"], set()),
        ([Invoice], ["read", "list"], set(PATHS)),
        ([Invoice], ["read_history"], set(PATHS)),
        ([Invoice], ["update"], set()),
        (["InvoiceHistory"], None, set()),
    ],
)
async def test_an_exemption_opens_no_more_than_it_says(
    database_url: str, models: Any, operations: Any, open_paths: set[str]
) -> None:
    def prepare(server: Server) -> None:
        server.pipeline.auth.register(auth.allow_anonymous(), models=models, operations=operations)
        server.pipeline.auth.register(auth.api_keys(keys=KEYS))

    async with a_world(database_url, prepare=prepare) as world:
        invoice = await world.server.db(Invoice).create(number="a")
        [row] = await world.versions(Invoice)
        moment = world.tick().isoformat().replace("+00:00", "Z")
        statuses = {}
        for path in PATHS:
            answer = await world.http.get(path.format(id=invoice.id, row=row.id, moment=moment))
            statuses[path] = answer.status_code
        assert {path for path, status in statuses.items() if status == 200} == open_paths
        assert {status for path, status in statuses.items() if path not in open_paths} <= {401}


@pytest.mark.parametrize("operations", [None, ["read", "list", "update"], ["read", "update"], ["update"]])
async def test_the_way_back_is_open_to_whom_reading_and_updating_are(
    database_url: str, operations: list[str] | None
) -> None:
    def prepare(server: Server) -> None:
        exemption = auth.allow_public_read() if operations is None else auth.allow_anonymous()
        server.pipeline.auth.register(exemption, models=[Invoice], operations=operations)
        server.pipeline.auth.register(auth.api_keys(keys=KEYS))

    async with a_world(database_url, prepare=prepare) as world:
        invoice = await world.server.db(Invoice).create(number="a")
        await world.server.db(Invoice).update(invoice.id, number="b")
        path = f"/hist_invoices/{invoice.id}/history/1/restore"
        is_open = operations is not None and "read" in operations
        answer = await world.http.post(path)
        assert answer.status_code == (200 if is_open else 401), answer.text
        assert (await world.server.db(Invoice).read(invoice.id)).number == ("a" if is_open else "b")
        with_key = await world.http.post(path, headers={"x-api-key": next(iter(KEYS))})
        assert with_key.status_code == 200


async def test_an_authenticator_of_histories_is_not_opened_by_the_record(database_url: str) -> None:
    def prepare(server: Server) -> None:
        server.pipeline.auth.register(auth.allow_public_read(), models=[Invoice])
        server.pipeline.auth.register(auth.api_keys(keys=KEYS), models=["InvoiceHistory"])

    async with a_world(database_url, prepare=prepare) as world:
        invoice = await world.server.db(Invoice).create(number="a")
        assert (await world.http.get(f"/hist_invoices/{invoice.id}")).status_code == 200
        assert (await world.http.get(f"/hist_invoices/{invoice.id}/history")).status_code == 401


async def test_middleware_binds_histories_by_the_record_and_by_their_own_fields(database_url: str) -> None:
    async def own(ctx: Context, next: Callable[[], Awaitable[None]]) -> None:
        if ctx.header("x-forced"):
            ctx.query.force("tenant_id", ctx.header("x-forced"))
        if ctx.header("x-filtered"):
            ctx.query.add_filter("tenant_id", ctx.header("x-filtered"))
        await next()

    def prepare(server: Server) -> None:
        server.pipeline.auth.register(own, models=[Invoice])
        mine = db.force_filter("actor_id", lambda ctx: ctx.header("x-author") or db.ALL)
        server.pipeline.auth.register(mine, models=["InvoiceHistory"])

    async with a_world(database_url, prepare=prepare) as world:
        with world.server.acting_as("ada"):
            invoice = await world.server.db(Invoice).create(number="a", tenant_id="a")
        with world.server.acting_as("bob"):
            await world.server.db(Invoice).update(invoice.id, number="b")
            await world.server.db(Invoice).delete(invoice.id)
        url = f"/hist_invoices/{invoice.id}/history"
        for name in ("x-forced", "x-filtered"):
            assert len((await world.http.get(url, headers={name: "a"})).json()["data"]) == 3
            assert (await world.http.get(url, headers={name: "b"})).status_code == 404
            flat = await world.http.get("/invoice_histories", headers={name: "a"})
            assert flat.json()["meta"]["total"] == 3, name
            assert (await world.http.get("/invoice_histories", headers={name: "b"})).json()["data"] == []
        for author, versions in (("ada", [1]), ("bob", [3, 2])):
            answer = await world.http.get(url, headers={"x-author": author})
            assert [v["version"] for v in answer.json()["data"]] == versions


async def test_a_policy_on_records_judges_their_histories(database_url: str) -> None:
    def own(ctx: Context, record: Any) -> bool:
        return bool(record.number == ctx.header("x-number"))

    def prepare(server: Server) -> None:
        server.pipeline.db.register(auth.enforce(own), models=[Invoice], operations=["read"])

    async with a_world(database_url, prepare=prepare) as world:
        invoice = await world.server.db(Invoice).create(number="a")
        [row] = await world.versions(Invoice)
        moment = world.tick().isoformat().replace("+00:00", "Z")
        for number, item_status, listed in (("a", 200, 1), ("b", 403, 0)):
            headers = {"x-number": number}
            for path in (
                f"/hist_invoices/{invoice.id}",
                f"/hist_invoices/{invoice.id}/history",
                f"/hist_invoices/{invoice.id}/history/1",
                f"/hist_invoices/{invoice.id}?as_of={moment}",
                f"/invoice_histories/{row.id}",
            ):
                assert (await world.http.get(path, headers=headers)).status_code == item_status, path
            for path in ("/invoice_histories", f"/hist_invoices?as_of={moment}"):
                answer = (await world.http.get(path, headers=headers)).json()
                assert len(answer["data"]) == listed, path
                assert "total" not in answer["meta"]
            back = await world.http.post(f"/hist_invoices/{invoice.id}/history/1/restore", headers=headers)
            assert back.status_code == item_status


@pytest.mark.parametrize("has_where", [False, True])
async def test_the_history_of_a_record_does_not_count_what_a_policy_hides(
    database_url: str, has_where: bool
) -> None:
    def prepare(server: Server) -> None:
        policy = auth.enforce(
            lambda ctx, record: record.number == "mine",
            where=(lambda ctx: {"number": "mine"}) if has_where else None,
        )
        server.pipeline.db.register(policy, models=[Invoice])

    async with a_world(database_url, prepare=prepare) as world:
        invoice = await world.server.db(Invoice).create(number="theirs")
        await world.server.db(Invoice).update(invoice.id, number="mine")
        path = f"/hist_invoices/{invoice.id}/history"
        answer = (await world.http.get(path)).json()
        assert len(answer["data"]) < 2
        assert answer["meta"] == {"page": 1, "limit": 20, "has_more": False}
        described = (await world.server.openapi())["paths"]["/hist_invoices/{id}/history"]["get"]
        schema = described["responses"]["200"]["content"]["application/json"]["schema"]
        assert "has_more" in str(schema["properties"]["meta"])


async def test_a_transformed_field_is_transformed_in_histories_too(database_url: str) -> None:
    def prepare(server: Server) -> None:
        hide = response.transform_field("number", lambda value: value[:1] + "***")
        server.pipeline.response.register(hide, models=[Invoice])

    async with a_world(database_url, prepare=prepare) as world:
        invoice = await world.invoice(number="secret")
        moment = world.tick().isoformat().replace("+00:00", "Z")
        world.tick()
        await world.http.patch(f"/hist_invoices/{invoice['id']}", json={"number": "mystery"})
        for path in (
            f"/hist_invoices/{invoice['id']}/history",
            "/invoice_histories",
            f"/hist_invoices/{invoice['id']}?as_of={moment}",
            f"/hist_invoices?as_of={moment}",
        ):
            answer = await world.http.get(path)
            assert answer.status_code == 200
            assert "secret" not in answer.text
            assert "mystery" not in answer.text
            assert "s***" in answer.text


async def test_a_replaced_read_does_not_stand_in_for_the_history(database_url: str) -> None:
    async def own_read(ctx: Context, next: Callable[[], Awaitable[None]]) -> None:
        ctx.result = {"own": True}

    def prepare(server: Server) -> None:
        server.pipeline.db.register(own_read, models=[Invoice], operations=["read"], at="replace")

    async with a_world(database_url, prepare=prepare) as world:
        invoice = await world.server.db(Invoice).create(number="a")
        assert (await world.http.get(f"/hist_invoices/{invoice.id}")).json()["data"] == {"own": True}
        history = await world.http.get(f"/hist_invoices/{invoice.id}/history")
        assert [v["version"] for v in history.json()["data"]] == [1]
