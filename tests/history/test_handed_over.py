"""H12, H13: a record that changed hands shows nobody the values it had in the hands of another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from maniflex import AuthInfo, Context, Model, Server
from maniflex import field as column
from maniflex.errors import NotFound
from maniflex.middleware import auth, db
from maniflex.query.operators import Op
from maniflex.query.query import AnyOf, Compare
from tests.history.world import Invoice, Ledger, Line, World, a_world, as_tenant

A, B = as_tenant("a"), as_tenant("b")
OPERATOR = as_tenant("ops", "operator")


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with a_world(database_url, tenants=True) as world:
        yield world


async def test_a_record_that_changed_hands_shows_the_state_of_neither_to_the_other(world: World) -> None:
    invoice = await world.server.db(Invoice).create(number="of a", tenant_id="a")
    then = world.tick().isoformat().replace("+00:00", "Z")
    world.tick()
    await world.server.db(Invoice).update(invoice.id, tenant_id="b", number="of b")
    now = world.tick().isoformat().replace("+00:00", "Z")
    url = f"/hist_invoices/{invoice.id}"
    assert (await world.http.get(f"{url}?as_of={then}", headers=A)).status_code == 404  # not its any more
    assert (await world.http.get(f"{url}?as_of={then}", headers=B)).status_code == 404  # not its then
    assert (await world.http.get(f"{url}?as_of={now}", headers=B)).json()["data"]["number"] == "of b"
    for headers in (A, B):
        assert (await world.http.get(f"/hist_invoices?as_of={then}", headers=headers)).json()["data"] == []


async def _handed_over(world: World, model: type[Model], **values: Any) -> str:
    """A record of tenant a that becomes one of tenant b, with a change behind each; its id."""
    record = await world.server.db(model).create(text_of(model, "of a"), tenant_id="a", **values)
    await world.server.db(model).update(record.id, text_of(model, "still of a"))
    await world.server.db(model).update(record.id, text_of(model, "handed over"), tenant_id="b")
    await world.server.db(model).update(record.id, text_of(model, "of b"))
    return record.id


def text_of(model: type[Model], text: str) -> dict[str, Any]:
    return {"text" if model is Ledger else "number": text}


@pytest.mark.parametrize(("model", "table"), [(Invoice, "hist_invoices"), (Ledger, "hist_ledger")])
async def test_versions_of_a_record_that_changed_hands_stay_with_the_former_tenant(
    world: World, model: type[Model], table: str
) -> None:
    record_id = await _handed_over(world, model)
    url, flat = f"/{table}/{record_id}/history", f"/{model.__name__.lower()}_histories"
    for path in (url, flat, f"{flat}?filter=record_id:eq:{record_id}"):
        answer = await world.http.get(path, headers=B)
        assert [v["version"] for v in answer.json()["data"]] == [4], path
        assert answer.json()["meta"]["total"] == 1
        assert "of a" not in answer.text
        assert (await world.http.get(path, headers=A)).json().get("data", []) == []
        everything = (await world.http.get(path, headers=OPERATOR)).json()["data"]
        assert [v["version"] for v in everything] == [4, 3, 2, 1]
    for number, status in ((1, 404), (2, 404), (3, 404), (4, 200)):
        assert (await world.http.get(f"{url}/{number}", headers=B)).status_code == status
        row = await world.server.history(model).version(record_id, number)
        assert (await world.http.get(f"{flat}/{row.id}", headers=B)).status_code == status
    assert (await world.http.get(url, headers=A)).status_code == 404


async def test_no_tenant_goes_back_to_a_version_of_another(world: World) -> None:
    invoice_id = await _handed_over(world, Invoice)
    for number in (1, 2, 3):
        back = await world.http.post(f"/hist_invoices/{invoice_id}/history/{number}/restore", headers=B)
        assert back.status_code == 404
    async with world.server.scoped(auth=AuthInfo(user_id="u", tenant_id="b")):
        assert [v.version for v in await world.server.history(Invoice).of(invoice_id)] == [4]
        with pytest.raises(NotFound):
            await world.server.history(Invoice).revert(invoice_id, 1)
    back = await world.http.post(f"/hist_invoices/{invoice_id}/history/4/restore", headers=B)
    assert back.status_code == 200


async def test_a_tenant_that_gets_a_record_back_sees_its_own_versions_of_it(world: World) -> None:
    invoice_id = await _handed_over(world, Invoice)
    await world.server.db(Invoice).update(invoice_id, tenant_id="a", number="back")
    await world.server.db(Invoice).delete(invoice_id)
    await world.server.db(Invoice).restore(invoice_id)
    shown = (await world.http.get(f"/hist_invoices/{invoice_id}/history?sort=version", headers=A)).json()
    assert [v["version"] for v in shown["data"]] == [1, 2, 6, 7]
    assert (await world.http.get(f"/hist_invoices/{invoice_id}/history", headers=B)).status_code == 404


async def test_versions_follow_the_record_they_belonged_to(world: World) -> None:
    invoices = [await world.server.db(Invoice).create(tenant_id=tenant) for tenant in ("a", "b")]
    line = await world.server.db(Line).create(text="of a", invoice_id=invoices[0].id)
    await world.server.db(Line).update(line.id, invoice_id=invoices[1].id, text="of b")
    await world.server.db(Line).update(line.id, text="later")
    for path in (f"/hist_lines/{line.id}/history", "/line_histories"):
        answer = await world.http.get(path, headers=B)
        assert [v["version"] for v in answer.json()["data"]] == [3]
        assert "of a" not in answer.text


class Posting(Model, table="hist_postings", versioned_diff_only=True):
    text: str = ""
    invoice_id: str = column(relation="Invoice", on_delete="cascade")


async def test_the_past_without_snapshots_follows_the_record_it_belonged_to(database_url: str) -> None:
    def prepare(server: Server) -> None:
        server.register(Posting)
        via = db.force_filter_via("invoice", "tenant_id", lambda ctx: ctx.require_auth().tenant_id)
        server.pipeline.auth.register(via, models=[Posting])

    async with a_world(database_url, tenants=True, prepare=prepare) as world:
        invoices = [await world.server.db(Invoice).create(tenant_id=tenant) for tenant in ("a", "b")]
        posting = await world.server.db(Posting).create(text="of a", invoice_id=invoices[0].id)
        then = world.tick()
        world.tick()
        await world.server.db(Posting).update(posting.id, invoice_id=invoices[1].id, text="of b")
        now = world.tick()
        texts = {}
        for moment in (then, now):
            url = f"/hist_postings/{posting.id}?as_of={moment.isoformat().replace('+00:00', 'Z')}"
            assert (await world.http.get(url, headers=A)).status_code == 404
            texts[moment] = (await world.http.get(url, headers=B)).json().get("data", {}).get("text")
        assert texts == {then: None, now: "of b"}
        async with world.server.scoped(auth=AuthInfo(user_id="u", tenant_id="b")):
            with pytest.raises(NotFound):
                await world.server.history(Posting).at(posting.id, then)


@pytest.mark.parametrize(("model", "table"), [(Invoice, "hist_invoices"), (Ledger, "hist_ledger")])
async def test_a_version_that_brought_a_record_into_one_of_two_conditions_is_not_shown(
    database_url: str, model: type[Model], table: str
) -> None:
    [name] = text_of(model, "")

    async def own_or_shared(ctx: Context, next: Callable[[], Awaitable[None]]) -> None:
        fields = ctx.query.model.by_name
        own = Compare(fields["tenant_id"], Op.EQ, "b")
        shared = Compare(fields[name], Op.EQ, "shared")
        ctx.query.filters = (*ctx.query.filters, AnyOf((own, shared)))
        await next()

    def prepare(server: Server) -> None:
        server.pipeline.deserialize.register(own_or_shared, models=[model])

    async with a_world(database_url, prepare=prepare) as world:
        records = world.server.db(model)
        record = await records.create(text_of(model, "of a"), tenant_id="a")
        for changes in (
            {"tenant_id": "b", "amount": 3},
            {"amount": 4},
            {"tenant_id": "c", name: "shared"},
            {"tenant_id": "b", "amount": 5},
            {name: "own"},
        ):
            await records.update(record.id, changes)
        shown = await world.http.get(f"/{table}/{record.id}/history?sort=version")
        assert [v["version"] for v in shown.json()["data"]] == [3, 4, 5, 6]


@pytest.mark.parametrize(("model", "table"), [(Invoice, "hist_invoices"), (Ledger, "hist_ledger")])
async def test_a_policy_judges_the_record_of_each_version(
    database_url: str, model: type[Model], table: str
) -> None:
    async def is_own(ctx: Context, record: Any) -> bool:
        return bool(record.tenant_id == ctx.require_auth().tenant_id)

    def prepare(server: Server) -> None:
        server.pipeline.db.register(auth.enforce(is_own), models=[model])

    async with a_world(database_url, prepare=prepare) as world:
        record_id = await _handed_over(world, model)
        url, flat = f"/{table}/{record_id}/history", f"/{model.__name__.lower()}_histories"
        for path in (url, flat):
            shown = await world.http.get(path, headers=B)
            assert [v["version"] for v in shown.json()["data"]] == [4], path
        for number, status in ((1, 403), (2, 403), (3, 403), (4, 200)):
            assert (await world.http.get(f"{url}/{number}", headers=B)).status_code == status
            row = await world.server.history(model).version(record_id, number)
            assert (await world.http.get(f"{flat}/{row.id}", headers=B)).status_code == status
        assert (await world.http.get(url, headers=A)).status_code == 403
        if model is Invoice:
            for number, status in ((1, 404), (3, 404), (4, 200)):
                back = await world.http.post(f"{url}/{number}/restore", headers=B)
                assert back.status_code == status
