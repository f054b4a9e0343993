"""Where the caller a job belongs to sees it: at `/job_statuses`, not among its runs."""

from __future__ import annotations

from typing import Any

from maniflex import Context, Server
from maniflex.testing import client
from tests.kit.http import data_of, error_of
from tests.kit.run_routes import ADA, BOB, ROOT, RUNS, known

STATUSES = "/api/job_statuses"


def with_a_job(*, handled: bool) -> Server:
    server = Server(background=False)
    server.pipeline.auth.register(known)
    server.work.enable()
    server.jobs.mount_status(types=["tidy"])

    @server.action("POST", "/ask")
    async def ask(ctx: Context) -> str:
        return await server.jobs.enqueue("tidy")

    if handled:

        @server.jobs.handler("tidy")
        async def tidy(job: Any) -> None:
            """Nothing to do."""

    return server


async def test_a_job_is_at_its_status_and_among_the_runs_of_admins_alone(database_url: str) -> None:
    async with client(with_a_job(handled=True), database=database_url) as http:
        id = data_of(await http.post("/api/ask", headers=ADA))

        assert data_of(await http.get(f"{STATUSES}/{id}", headers=ADA))["status"] == "enqueued"
        error_of(await http.get(f"{STATUSES}/{id}", headers=BOB), 404, "NOT_FOUND")
        assert (await http.get(RUNS, headers=ADA)).json()["meta"]["total"] == 0
        error_of(await http.get(f"{RUNS}/{id}", headers=ADA), 404, "NOT_FOUND")
        assert data_of(await http.get(f"{RUNS}/{id}", headers=ROOT))["actor_id"] == "ada"


async def test_a_process_without_the_handler_shows_a_job_as_a_run_of_its_caller(database_url: str) -> None:
    async with client(with_a_job(handled=False), database=database_url) as http:
        id = data_of(await http.post("/api/ask", headers=ADA))

        assert data_of(await http.get(f"{RUNS}/{id}", headers=ADA))["type"] == "tidy"
        error_of(await http.get(f"{RUNS}/{id}", headers=BOB), 404, "NOT_FOUND")
