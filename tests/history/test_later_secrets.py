"""S1: what became a secret after it was written is shown neither by histories nor by audit trails."""

from __future__ import annotations

import httpx

from maniflex import AuthInfo, Context, Model, Next, Server, field
from maniflex.audit import TableSink
from maniflex.middleware import db
from maniflex.testing import client
from tests.kit.http import data_of

ADMIN = {"x-user": "root"}


def _server(url: str, *, is_secret: bool) -> Server:
    class Person(Model, table="late_people", versioned=True, history_restore=True):
        name: str = ""
        salary: str = field(default="")

    if is_secret:

        class Person(Model, table="late_people", versioned=True, history_restore=True):  # type: ignore[no-redef]
            name: str = ""
            salary: str = field(default="", hidden=True, alias="grade")

    async def admin(ctx: Context, next: Next) -> None:
        ctx.auth = AuthInfo(user_id="root", roles=["admin"])
        await next()

    server = Server(database=url, path_prefix="")
    server.register(Person)
    server.pipeline.auth.register(admin)
    server.pipeline.db.register(db.audit_log(TableSink(routes=True), changes=True), models=[Person])
    return server


async def _shown(http: httpx.AsyncClient, record_id: str, then: str) -> str:
    paths = (
        f"/late_people/{record_id}/history",
        f"/late_people/{record_id}/history/2",
        "/person_histories",
        f"/late_people/{record_id}?as_of={then}",
        f"/late_people?as_of={then}",
        "/audit_log",
        "/audit_log?select=id,model,changes",
    )
    answers = [await http.get(path) for path in paths]
    assert {answer.status_code for answer in answers} == {200}, [a.text for a in answers]
    rows = data_of(answers[-2])
    answers += [await http.get(f"/audit_log/{row['id']}") for row in rows]
    return "".join(answer.text for answer in answers)


async def test_a_field_that_became_a_secret_is_shown_nowhere(database_url: str) -> None:
    async with client(_server(database_url, is_secret=False), database=None) as http:
        made = data_of(await http.post("/late_people", json={"name": "n", "salary": "40000"}), 201)
        changed = data_of(await http.patch(f"/late_people/{made['id']}", json={"salary": "50000"}))
        assert "50000" in await _shown(http, made["id"], changed["updated_at"])
    async with client(_server(database_url, is_secret=True), database=None) as http:
        shown = await _shown(http, made["id"], changed["updated_at"])
        assert "40000" not in shown
        assert "50000" not in shown
        assert (await http.post(f"/late_people/{made['id']}/history/1/restore")).status_code == 200
        assert "40000" not in await _shown(http, made["id"], changed["updated_at"])
