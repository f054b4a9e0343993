"""`GET /workflow_run/{id}/steps`: what is done of a run, for those who see the run."""

from __future__ import annotations

from maniflex import Run
from tests.kit.http import data_of
from tests.kit.run_routes import ADA, ROOT, RUNS, STRANGERS, TENANT_ADMIN, a_server, site_on


async def test_the_steps_of_a_run_are_shown_to_those_who_see_it(database_url: str) -> None:
    server = a_server()

    @server.work.handler("default.steps", public=True)
    async def steps(run: Run) -> None:
        await run.step("render", lambda: {"pages": 12})
        await run.step("send", lambda: None)

    async with site_on(server, database_url) as site:
        run = await site.submit(type="default.steps")
        path = f"{RUNS}/{run['id']}/steps"
        assert data_of(await site.http.get(path, headers=ADA)) == []
        await site.drain()

        rows = data_of(await site.http.get(path, headers=ROOT))
        assert [(row["name"], row["result"], row["compensated"]) for row in rows] == [
            ("render", {"pages": 12}, False),
            ("send", None, False),
        ]
        for headers in (ADA, TENANT_ADMIN):
            rows = data_of(await site.http.get(path, headers=headers))
            assert [row["name"] for row in rows] == ["render", "send"]
            assert all("result" not in row for row in rows)
        for stranger in STRANGERS:
            assert (await site.http.get(path, headers=stranger)).status_code == 404
        assert (await site.http.get(path)).status_code == 401
        assert (await site.http.get(f"{RUNS}/none/steps", headers=ROOT)).status_code == 404
        assert (await site.http.post(path, headers=ROOT)).status_code == 405
