"""The feed over REST: operators read it, and pause, resume and replay its groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from maniflex import Model, Server
from maniflex.events import Event
from maniflex.testing import client
from tests.kit.http import data_of, error_of, offenders
from tests.kit.run_routes import ADA, ADA_NOWHERE, ROOT, TENANT_ADMIN, known

LOG, GROUPS = "/api/event_log", "/api/event_group"
COMMANDS = ("pause", "resume", "replay")


class Note(Model, events=True):
    """What emits."""

    text: str = ""


@asynccontextmanager
async def a_site(url: str, **options: Any) -> AsyncIterator[tuple[Server, httpx.AsyncClient, list[Event]]]:
    """A server with one group, which keeps the events it was handed."""
    server = Server(background=False)
    server.register(Note)
    server.pipeline.auth.register(known)
    server.events.enable(**options)
    events: list[Event] = []

    @server.events.subscribe("*", group="billing")
    def take(event: Event) -> None:
        events.append(event)

    async with client(server, database=url) as http:
        yield server, http, events


async def test_only_operators_see_and_change_the_feed(database_url: str) -> None:
    async with a_site(database_url) as (server, http, _):
        await server.db(Note).create(text="x")
        await server.events.drain()
        [event] = await server.events.read()
        requests = [
            *(("GET", path) for path in (LOG, f"{LOG}/{event.id}", GROUPS, f"{GROUPS}/billing")),
            *(("POST", f"{GROUPS}/billing/{command}") for command in COMMANDS),
        ]
        for method, path in requests:
            body = {"after": await server.events.position()} if path.endswith("replay") else None
            error_of(await http.request(method, path, json=body), 401, "UNAUTHORIZED")
            for who in (ADA, ADA_NOWHERE, TENANT_ADMIN):
                error_of(await http.request(method, path, json=body, headers=who), 403, "FORBIDDEN")
            answer = await http.request(method, path, json=body, headers=ROOT)
            assert answer.status_code == (202 if path.endswith("replay") else 200), answer.text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *((method, path) for path in (LOG, GROUPS) for method in ("POST", "PUT", "PATCH", "DELETE")),
        *(
            (method, path)
            for path in (f"{LOG}/x", f"{GROUPS}/billing")
            for method in ("POST", "PUT", "PATCH", "DELETE")
        ),
    ],
)
async def test_nobody_writes_the_feed_over_rest(sqlite_url: str, method: str, path: str) -> None:
    async with a_site(sqlite_url) as (_, http, _):
        error_of(await http.request(method, path, json={}, headers=ROOT), 405, "METHOD_NOT_ALLOWED")
        assert (await http.get("/api/event_position", headers=ROOT)).status_code == 404


async def test_an_event_is_shown_as_it_is_stored(database_url: str) -> None:
    async with a_site(database_url) as (server, http, _):
        note = await server.db(Note).create(text="x")
        await server.events.drain()

        [shown] = data_of(await http.get(f"{LOG}?filter=type:eq:note.created", headers=ROOT))

        assert (shown["position"], shown["subject"], shown["data"]["text"]) == (1, f"note/{note.id}", "x")
        assert not {"seq", "scope"} & shown.keys()
        assert data_of(await http.get(f"{LOG}/{shown['id']}", headers=ROOT)) == shown


async def test_a_group_is_paused_and_goes_on(database_url: str) -> None:
    async with a_site(database_url) as (server, http, events):
        assert data_of(await http.post(f"{GROUPS}/billing/pause", headers=ROOT))["paused"] is True
        await server.db(Note).create(text="x")
        await server.events.drain()
        assert events == []

        assert data_of(await http.post(f"{GROUPS}/billing/resume", headers=ROOT))["paused"] is False
        await server.events.drain()
        assert len(events) == 1
        [group] = data_of(await http.get(GROUPS, headers=ROOT))
        assert (group["name"], group["position"], group["kind"]) == ("billing", 1, "handler")
        for command in ("pause", "resume"):
            error_of(await http.post(f"{GROUPS}/nobody/{command}", headers=ROOT), 404, "NOT_FOUND")


async def test_events_are_handed_on_again(database_url: str) -> None:
    async with a_site(database_url) as (server, http, events):
        began = datetime.now(UTC)
        cursors = []
        for text in "abc":
            await server.db(Note).create(text=text)
            await server.events.drain()
            cursors.append(await server.events.position())
        replay = f"{GROUPS}/billing/replay"

        body = {"after": cursors[0], "until": cursors[1]}
        assert data_of(await http.post(replay, json=body, headers=ROOT), 202) == {"count": 1}
        body = {"since": began.isoformat()}
        assert data_of(await http.post(replay, json=body, headers=ROOT), 202) == {"count": 3}
        await server.events.drain()

        assert [event.data["text"] for event in events] == [*"abc", "b", *"abc"]
        assert len({event.id for event in events}) == 3


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "after"),
        ({"after": "x:1", "since": "2026-01-01T00:00:00Z"}, "after"),
        ({"after": 7}, "after"),
        ({"since": "2026-01-01T00:00:00"}, "since"),
        ({"since": 7}, "since"),
        ({"after": "x:1", "to": "x:2"}, "to"),
        ({"after": "x" * 61}, "after"),
    ],
)
async def test_a_replay_says_where_it_begins(sqlite_url: str, body: dict[str, Any], field: str) -> None:
    async with a_site(sqlite_url) as (_, http, _):
        assert field in offenders(await http.post(f"{GROUPS}/billing/replay", json=body, headers=ROOT))


async def test_a_replay_behind_a_cursor_of_another_epoch_is_refused(sqlite_url: str) -> None:
    async with a_site(sqlite_url) as (server, http, events):
        await server.db(Note).create(text="x")
        await server.events.drain()
        cursor = await server.events.position()
        await server.events.renew()

        refused = await http.post(f"{GROUPS}/billing/replay", json={"after": cursor}, headers=ROOT)
        error_of(refused, 400, "INVALID_QUERY")
        missing = await http.post(f"{GROUPS}/nobody/replay", json={"after": cursor}, headers=ROOT)
        error_of(missing, 404, "NOT_FOUND")
        await server.events.drain()
        assert len(events) == 1


async def test_routes_are_left_out_and_another_role_is_named(sqlite_url: str) -> None:
    async with a_site(sqlite_url, routes=False) as (_, http, _):
        for path in (LOG, GROUPS):
            error_of(await http.get(path, headers=ROOT), 404, "NOT_FOUND")
        error_of(await http.post(f"{GROUPS}/billing/pause", headers=ROOT), 404, "NOT_FOUND")
    async with a_site(sqlite_url, admin_role="operator") as (_, http, _):
        error_of(await http.get(LOG, headers=ROOT), 403, "FORBIDDEN")
        data_of(await http.get(LOG, headers={"x-user": "o", "x-roles": "operator"}))


async def test_the_api_description_names_the_routes_of_the_feed(sqlite_url: str) -> None:
    async with a_site(sqlite_url) as (server, _, _):
        paths = (await server.openapi())["paths"]

        operations = {path: set(paths[path]) for path in paths if path.startswith(("/api/event_",))}
        assert operations == {
            **{path: {"get"} for path in (LOG, f"{LOG}/{{id}}", GROUPS, f"{GROUPS}/{{id}}")},
            **{f"{GROUPS}/{{id}}/{command}": {"post"} for command in COMMANDS},
        }
        assert paths[LOG]["get"]["operationId"] == "list_logged_events"
        assert {tag for path in operations for op in paths[path].values() for tag in op["tags"]} == {"Events"}
