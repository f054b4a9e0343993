"""Random requests of two tenants at an application with everything declared: no leak, no 5xx, no gap.

Every text that a tenant writes carries its mark, which no answer to the other may show.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from maniflex import Server
from maniflex.testing import client
from tests.kit.whole_office import make_server

ORGS = ("red", "blue")
SECRET, WAGE = "SECRET", 7712345678901  # more digits than a moment has
FILE_FIELDS = {"teams": "logo", "tasks": "scans", "notes": "text"}
HISTORIES = {"teams": "team_histories", "tasks": "task_histories", "notes": "note_histories"}
QUERIES: dict[str, tuple[dict[str, str], ...]] = {
    "teams": ({}, {"include": "tasks"}, {"filter": "name:contains:MARK"}, {"select": "id"}),
    "tasks": (
        {"include": "team"},
        {"filter": "team.name:contains:MARK"},
        {"sort": "title:desc"},
        {"filter": "wage:gt:1"},
        {"limit": "3", "cursor": ""},
    ),
    "notes": ({"include": "task"}, {"include": "task.team"}, {"filter": "task.title:contains:MARK"}),
}
WALKERS = 8


class Walk:
    """Requests that a seed decides, and what was wrong with the answers."""

    def __init__(self, server: Server, http: httpx.AsyncClient, seed: int) -> None:
        self._server = server
        self._http = http
        self._random = random.Random(seed)
        self._known: dict[tuple[str, str], list[str]] = {}
        self.faults: list[str] = []
        self.seen: Counter[tuple[str, int]] = Counter()

    async def go(self, steps: int) -> None:
        actions: list[tuple[Callable[..., Awaitable[httpx.Response]], int]] = [
            (self._create, 6),
            (self._create_by_form, 2),
            (self._update, 5),
            (self._delete, 1),
            (self._restore, 2),
            (self._read, 3),
            (self._list, 4),
            (self._read_past, 5),
            (self._aggregate, 1),
            (self._search, 1),
            (self._read_file, 2),
            (self._upload, 1),
            (self._act, 2),
        ]
        for _ in range(steps):
            [action] = self._random.choices([a for a, _ in actions], [weight for _, weight in actions])
            org = self._random.choice(ORGS)
            kind = self._random.choice(("teams", "tasks", "tasks", "notes"))
            role = self._random.choice(("member", "boss"))
            self._judge(action, org, role, await action(org, kind, self._headers(org, role)))
            if self._random.random() < 0.02:
                await self._server.scheduled.sweep()

    def _headers(self, org: str, role: str) -> dict[str, str]:
        headers = {"x-org": org, "x-user": f"{org}-{self._random.randrange(2)}", "x-role": role}
        if self._random.random() < 0.2:
            headers["Idempotency-Key"] = f"key-{self._random.randrange(40)}"
        return headers

    def _judge(self, action: Any, org: str, role: str, answer: httpx.Response) -> None:
        name = action.__name__.lstrip("_")
        self.seen[name, answer.status_code] += 1
        other = ORGS[1 - ORGS.index(org)]
        shown = answer.text
        wrong = [
            answer.status_code >= 500,
            f"{other}MARK" in shown,
            SECRET in shown,
            role != "boss" and str(WAGE) in shown,
        ]
        if any(wrong):
            self.faults.append(f"{name} by {org} {role}: {answer.request.url} {answer.status_code} {shown}")

    # what requests are made of

    def _mark(self, org: str) -> str:
        return f"{org}MARK{self._random.randrange(10**6)}"

    def _id(self, org: str, kind: str) -> str:
        """An id or a key of the tenant, now and then one of the other tenant or of nothing."""
        owner = self._random.choices((org, ORGS[1 - ORGS.index(org)], "nobody"), (15, 4, 1))[0]
        return self._random.choice(self._known.get((owner, kind), ["absent"]))

    def _body(self, org: str, kind: str) -> dict[str, Any]:
        draw = self._random
        now = datetime.now(UTC)
        if kind == "notes":
            return {"task_id": self._id(org, "tasks"), "text": self._mark(org)}
        if kind == "teams":
            always: dict[str, Any] = {"name": self._mark(org), "secret": SECRET}
            may: dict[str, Any] = {
                "parent_id": self._id(org, "teams"),
                "logo": self._id(org, "files"),
                "org": "blue",
            }
        else:
            always = {"team_id": self._id(org, "teams"), "title": self._mark(org), "wage": WAGE}
            may = {
                "cost": str(draw.randrange(100) / 4),
                "extra": {"said": self._mark(org), "n": draw.choice([1, 1.0, None, [{}]])},
                "state": draw.choice(["open", "doing", "done"]),
                "close_at": (now + timedelta(seconds=draw.choice([-1, 1]))).isoformat(),
                "scans": [self._id(org, "files") for _ in range(draw.randrange(3))],
            }
        return always | {name: value for name, value in may.items() if draw.random() < 0.2}

    def _moment(self) -> str:
        return (datetime.now(UTC) - timedelta(seconds=self._random.random())).isoformat()

    def _keep(self, org: str, kind: str, answer: httpx.Response) -> httpx.Response:
        if answer.status_code == 201:
            data = answer.json()["data"]
            self._known.setdefault((org, kind), []).append(data["key" if kind == "files" else "id"])
        return answer

    # the requests

    async def _create(self, org: str, kind: str, headers: dict[str, str]) -> httpx.Response:
        answer = await self._http.post(f"/api/{kind}", json=self._body(org, kind), headers=headers)
        return self._keep(org, kind, answer)

    async def _create_by_form(self, org: str, kind: str, headers: dict[str, str]) -> httpx.Response:
        place = FILE_FIELDS[kind]
        texts = {n: v for n, v in self._body(org, kind).items() if isinstance(v, str) and n != place}
        files = {place: ("a.txt", self._mark(org).encode(), "text/plain")}
        answer = await self._http.post(f"/api/{kind}", data=texts, files=files, headers=headers)
        return self._keep(org, kind, answer)

    async def _update(self, org: str, kind: str, headers: dict[str, str]) -> httpx.Response:
        path = f"/api/{kind}/{self._id(org, kind)}"
        found = await self._http.get(path, headers=headers)
        if kind == "teams" and "etag" in found.headers:
            headers["If-Match"] = found.headers["etag"]
        body = {n: v for n, v in self._body(org, kind).items() if self._random.random() < 0.5}
        return await self._http.patch(path, json=body, headers=headers)

    async def _delete(self, org: str, kind: str, headers: dict[str, str]) -> httpx.Response:
        return await self._http.delete(f"/api/{kind}/{self._id(org, kind)}", headers=headers)

    async def _restore(self, org: str, kind: str, headers: dict[str, str]) -> httpx.Response:
        version = f"/history/{self._random.randrange(1, 4)}"
        path = f"/api/{kind}/{self._id(org, kind)}{self._random.choice(['', version])}/restore"
        return await self._http.post(path, headers=headers)

    async def _read(self, org: str, kind: str, headers: dict[str, str]) -> httpx.Response:
        return await self._http.get(f"/api/{kind}/{self._id(org, kind)}", headers=headers)

    async def _list(self, org: str, kind: str, headers: dict[str, str]) -> httpx.Response:
        whole = self._random.random() < 0.2
        query = {"format": "csv"} if whole else self._random.choice(QUERIES[kind])
        return await self._http.get(f"/api/{kind}{'/export' if whole else ''}", params=query, headers=headers)

    async def _read_past(self, org: str, kind: str, headers: dict[str, str]) -> httpx.Response:
        record = f"/api/{kind}/{self._id(org, kind)}"
        path, query = self._random.choice(
            [
                (f"{record}/history", {}),
                (f"{record}/history/{self._random.randrange(1, 4)}", {}),
                (record, {"as_of": self._moment()}),
                (f"/api/{kind}", {"as_of": self._moment()}),
                (f"/api/{HISTORIES[kind]}", {"limit": "100"}),
            ]
        )
        return await self._http.get(path, params=query, headers=headers)

    async def _aggregate(self, org: str, kind: str, headers: dict[str, str]) -> httpx.Response:
        by = {"teams": ["name"], "tasks": ["title", "wage", "state"], "notes": ["text"]}[kind]
        wanted = {"select": [{"op": "count"}], "group_by": [self._random.choice(by)]}
        query = {"aggregate": json.dumps(wanted)}
        return await self._http.get(f"/api/{kind}/aggregate", params=query, headers=headers)

    async def _search(self, org: str, kind: str, headers: dict[str, str]) -> httpx.Response:
        path = self._random.choice(["/api/search", "/api/tasks", "/api/teams"])
        known = self._random.choice(self._known.get(("blue", "teams"), ["mark"]))
        return await self._http.get(path, params={"q": self._random.choice(["mark", known])}, headers=headers)

    async def _read_file(self, org: str, kind: str, headers: dict[str, str]) -> httpx.Response:
        paths = [
            f"tasks/{self._id(org, 'tasks')}/scans/0",
            f"teams/{self._id(org, 'teams')}/logo",
            f"files/{self._id(org, 'files')}",
        ]
        return await self._http.get(f"/api/{self._random.choice(paths)}", headers=headers)

    async def _upload(self, org: str, kind: str, headers: dict[str, str]) -> httpx.Response:
        files = {"file": ("a.txt", self._mark(org).encode(), "text/plain")}
        return self._keep(org, "files", await self._http.post("/api/files", files=files, headers=headers))

    async def _act(self, org: str, kind: str, headers: dict[str, str]) -> httpx.Response:
        if self._random.random() < 0.5:
            return await self._http.get("/api/ours", headers=headers)
        return await self._http.post(f"/api/tasks/{self._id(org, 'tasks')}/charge", headers=headers)


@pytest.mark.parametrize("seed", [1, 2])
async def test_two_tenants_beside_each_other(database_url: str, fuzz_cases: int, seed: int) -> None:
    server = make_server(database_url)
    async with client(server, database=None) as http:
        walk = Walk(server, http, seed)
        await asyncio.gather(*(walk.go(fuzz_cases // WALKERS) for _ in range(WALKERS)))
        assert walk.faults == []
        done = {name for name, status in walk.seen if status < 300}
        assert done >= {"create", "update", "read", "list", "read_past", "search", "upload", "act"}
        for table in HISTORIES.values():
            counted = "count(*) AS n, max(version) AS last, min(version) AS first"
            for row in await server.raw_query(f"SELECT {counted} FROM {table} GROUP BY record_id"):
                assert row["n"] == row["last"]
                assert row["first"] == 1
