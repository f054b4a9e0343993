"""`server.saga`: a route that submits a run, waits where its caller prefers to, and tells what was undone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from maniflex import AuthInfo, Context, DeclarationError, Next, Run, Server
from maniflex.testing import client
from tests.kit.http import data_of, error_of, together


class Trip(BaseModel):
    city: str
    fails: bool = False


class Agency:
    """Books trips, and notes what it does."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.letters: list[Any] = []
        self.undo_fails = False

    def cancel(self, what: str) -> None:
        self.log.append(f"-{what}")
        if self.undo_fails:
            raise ConnectionError("the hotel does not answer")

    def do(self, what: str) -> str:
        self.log.append(f"+{what}")
        return what

    async def book(self, run: Run[Trip]) -> dict[str, str]:
        """Book a hotel and a flight, or neither."""
        await run.step("hotel", self.do, "hotel", compensate=self.cancel)
        await run.step("mail", self.do, "mail")
        await run.step("flight", self.do, "flight", compensate=self.cancel)
        if run.payload.fails:
            raise LookupError("no such city")
        return {"city": run.payload.city}

    def server(self, settings: Mapping[str, Any] | None = None, **options: Any) -> Server:
        server = Server(**(settings or {}))

        async def identify(ctx: Context, next: Next) -> None:
            if user := ctx.header("x-user"):
                ctx.auth = AuthInfo(user_id=user, tenant_id=ctx.header("x-tenant") or "")
            await next()

        server.pipeline.auth.register(identify)
        options = {"max_attempts": 1, "undo_attempts": 3, "undo_backoff": 0.001, **options}
        server.saga("POST", "/trips/book", type="trip.book.v1", request=Trip, **options)(self.book)

        @server.work.handler("trip.dead.v1")
        async def bury(run: Run) -> None:
            self.letters.append(run.payload)

        return server


ANN, BOB = {"x-user": "ann"}, {"x-user": "bob"}
PATH = "/api/trips/book"


@pytest.fixture
def agency() -> Agency:
    return Agency()


@asynccontextmanager
async def working(agency: Agency, url: str, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with client(agency.server(**options), database=url, background=True) as http:
        yield http


async def test_a_new_run_is_accepted_and_its_caller_alone_may_look_at_it(
    agency: Agency, database_url: str
) -> None:
    async with client(agency.server(), database=database_url) as http:
        answer = await http.post(PATH, json={"city": "Rome"}, headers=ANN)
        data = data_of(answer, 202)
        assert data == {"run_id": data["run_id"], "status": "pending"}
        assert answer.headers["location"] == f"/api/workflow_run/{data['run_id']}"
        assert data_of(await http.get(answer.headers["location"], headers=ANN))["payload"]["city"] == "Rome"
        error_of(await http.get(answer.headers["location"], headers=BOB), 404, "NOT_FOUND")
        assert (await http.get(answer.headers["location"])).status_code == 401
        error_of(await http.post(PATH, json={}, headers=ANN), 422, "VALIDATION_FAILED")
        waited = await http.post(PATH, json={"city": "Rome"}, headers={**ANN, "prefer": "wait=0"})
        assert waited.status_code == 202


@pytest.mark.parametrize("prefer", ["wait=10", "respond-async, wait=20", 'wait="5"'])
async def test_who_prefers_to_wait_is_given_the_result(
    agency: Agency, database_url: str, prefer: str
) -> None:
    async with working(agency, database_url) as http:
        answer = await http.post(PATH, json={"city": "Rome"}, headers={**ANN, "prefer": prefer})
        data = data_of(answer)
        assert (data["status"], data["result"]) == ("succeeded", {"city": "Rome"})
        assert answer.headers["preference-applied"].startswith("wait=")
        assert agency.log == ["+hotel", "+mail", "+flight"]


@pytest.mark.parametrize("prefer", ["wait", "wait=x", "wait=-1", "wait=1.5", "return=minimal", "wait=٣"])
async def test_a_preference_that_cannot_be_read_is_ignored(
    agency: Agency, sqlite_url: str, prefer: str
) -> None:
    async with client(agency.server(), database=sqlite_url) as http:
        headers = {b"x-user": b"ann", b"prefer": prefer.encode()}
        assert (await http.post(PATH, json={"city": "Rome"}, headers=headers)).status_code == 202


async def test_waiting_ends_with_the_run_as_it_is_by_then(agency: Agency, database_url: str) -> None:
    server = agency.server(settings={"query_timeout": 0.5})
    async with client(server, database=database_url) as http:
        answer = await http.post(PATH, json={"city": "Rome"}, headers={**ANN, "prefer": "wait=30"})
        assert data_of(answer, 202)["status"] == "pending"


async def test_a_key_is_the_callers_own_and_makes_one_run(agency: Agency, database_url: str) -> None:
    async with client(agency.server(), database=database_url) as http:

        async def send(_: int) -> httpx.Response:
            return await http.post(PATH, json={"city": "Rome"}, headers={**ANN, "idempotency-key": "k"})

        answers = await together(6, send)
        assert sorted(answer.status_code for answer in answers) == [200] * 5 + [202]
        assert len({answer.json()["data"]["run_id"] for answer in answers}) == 1
        other = await http.post(PATH, json={"city": "Oslo"}, headers={**ANN, "idempotency-key": "k"})
        error_of(other, 422, "IDEMPOTENCY_KEY_REUSED")
        of_bob = await http.post(PATH, json={"city": "Oslo"}, headers={**BOB, "idempotency-key": "k"})
        assert data_of(of_bob, 202)["run_id"] != answers[0].json()["data"]["run_id"]
        in_tenant = {**ANN, "x-tenant": "t", "idempotency-key": "k"}
        assert (await http.post(PATH, json={"city": "Rome"}, headers=in_tenant)).status_code == 202
        bad = await http.post(PATH, json={"city": "Rome"}, headers={**ANN, "idempotency-key": "a b"})
        error_of(bad, 400, "IDEMPOTENCY_KEY_INVALID")


async def test_a_failed_saga_is_undone_and_says_so(agency: Agency, database_url: str) -> None:
    async with working(agency, database_url) as http:
        body, headers = {"city": "Atlantis", "fails": True}, {**ANN, "prefer": "wait=10"}
        error = error_of(await http.post(PATH, json=body, headers=headers), 409, "SAGA_FAILED")
        assert error["details"] == [{"step": "hotel", "undone": True}, {"step": "flight", "undone": True}]
        assert agency.log == ["+hotel", "+mail", "+flight", "-flight", "-hotel"]
        assert "Atlantis" not in json.dumps(error)
        assert "LookupError" not in json.dumps(error)


async def test_an_undo_that_keeps_failing_ends_after_its_attempts(agency: Agency, database_url: str) -> None:
    agency.undo_fails = True
    async with working(agency, database_url, dead_letter="trip.dead.v1") as http:
        body, headers = {"city": "Atlantis", "fails": True}, {**ANN, "prefer": "wait=20"}
        answer = await http.post(PATH, json=body, headers={**headers, "idempotency-key": "k"})
        error = error_of(answer, 500, "SAGA_UNDO_FAILED")
        assert error["details"] == [{"step": "hotel", "undone": False}, {"step": "flight", "undone": False}]
        assert agency.log.count("-flight") == 3
        again = await http.post(PATH, json=body, headers={**ANN, "idempotency-key": "k"})
        assert data_of(again)["status"] == "failed"
        run = data_of(await http.get(f"/api/workflow_run/{again.json()['data']['run_id']}", headers=ANN))
        assert run["status"] == "failed"


async def test_in_a_batch_nobody_waits_and_a_failure_takes_the_run_back(
    agency: Agency, database_url: str
) -> None:
    server = agency.server()
    server.enable_batch(actions=True)
    async with client(server, database=database_url) as http:
        book = {
            "method": "POST",
            "path": "/trips/book",
            "body": {"city": "Rome"},
            "headers": {"Prefer": "wait=30"},
        }
        [outcome] = data_of(await http.post("/api/batch", json={"operations": [book]}, headers=ANN))
        assert outcome["status"] == 202
        operations = [book, {"method": "GET", "path": "/nothing"}]
        error_of(
            await http.post("/api/batch", json={"operations": operations}, headers=ANN), 404, "BATCH_FAILED"
        )
        assert len(await server.work.list(type="trip.book.v1")) == 1


async def test_the_description_has_the_route_with_its_answers(agency: Agency, sqlite_url: str) -> None:
    async with client(agency.server(), database=sqlite_url) as http:
        operation = (await http.get("/api/openapi.json")).json()["paths"][PATH]["post"]
    assert {"200", "202", "409", "422"} <= operation["responses"].keys()
    assert operation["description"].startswith("Book a hotel")


def test_mistakes_of_the_declaration_are_told(agency: Agency) -> None:
    server = Server(database=":memory:")
    with pytest.raises(DeclarationError, match="no argument 'atempts'"):
        server.saga("POST", "/x", type="x.v1", atempts=1)(agency.book)  # type: ignore[call-arg]
    server.saga("POST", "/y", type="y.v1", undo_attempts=0, undo_backoff=-1)(agency.book)
    with pytest.raises(DeclarationError, match="undo_attempts") as refused:
        server.seal()
    assert any("undo_backoff" in problem for problem in refused.value.problems)
