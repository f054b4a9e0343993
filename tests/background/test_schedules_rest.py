"""Schedules as an administrator sees them over REST, and as nobody else does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from maniflex import AuthInfo, Context, Model, Next, Server, field
from maniflex.background.schedules.api import Schedules
from maniflex.background.schedules.model import Schedule
from maniflex.errors import DeclarationError, InvalidSchedule
from tests.kit.http import data_of, error_of
from tests.kit.schedules import Bench, a_bench

HOUR = timedelta(hours=1)
A_SCHEDULE = {
    "name": "nightly",
    "cron": "0 2 * * *",
    "timezone": "Europe/Berlin",
    "target": "report.daily.v1",
}
ADMIN = {"x-user": "ada", "x-roles": "admin"}


async def by_header(ctx: Context, next: Next) -> None:
    """Whoever the header says."""
    user = ctx.header("x-user")
    if user:
        ctx.auth = AuthInfo(user_id=user, roles=(ctx.header("x-roles") or "").split(","))
    await next()


def with_auth(server: Server) -> None:
    server.pipeline.auth.register(by_header)


@asynccontextmanager
async def serving(
    url: str,
    declare: Callable[[Schedules], Any] = Schedules.enable,
    handlers: Callable[[Server], object] = with_auth,
) -> AsyncIterator[tuple[httpx.AsyncClient, Bench]]:
    async with a_bench(url, declare, handlers=handlers) as bench:
        transport = httpx.ASGITransport(bench.server)
        async with httpx.AsyncClient(transport=transport, base_url="http://test/api", headers=ADMIN) as http:
            yield http, bench


async def test_an_admin_makes_reads_changes_and_deletes_schedules(database_url: str) -> None:
    async with serving(database_url) as (http, bench):
        made = data_of(await http.post("/schedules", json={**A_SCHEDULE, "payload": {"a": [1]}}), 201)
        assert made["next_run_at"] == "2026-01-01T01:00:00Z"
        assert (made["status"], made["policy"], made["kind"]) == ("active", "once", "run")

        path = f"/schedules/{made['id']}"
        changed = data_of(await http.patch(path, json={"cron": "0 3 * * *"}))
        assert changed["next_run_at"] == "2026-01-01T02:00:00Z"
        assert data_of(await http.get("/schedules?filter=name:eq:nightly"))[0]["id"] == made["id"]

        off = data_of(await http.post(f"{path}/deactivate"))
        assert (off["status"], off["next_run_at"]) == ("inactive", None)
        assert data_of(await http.patch(path, json={"status": "active"}))["next_run_at"] is not None
        assert data_of(await http.post(f"{path}/activate"))["status"] == "active"

        bench.clock.advance(HOUR * 2)
        assert [s["name"] for s in data_of(await http.get("/schedules/due?limit=5"))] == ["nightly"]
        started = data_of(await http.post(f"{path}/run"), 202)
        assert await bench.scheduler.tick() == 1
        firings = data_of(await http.get(f"/schedule_firing?filter=schedule_id:eq:{made['id']}"))
        assert started["run_id"] in {f["run_id"] for f in firings}
        assert data_of(await http.get("/schedules/due")) == []

        assert (await http.delete(path)).status_code == 204
        assert (await http.get(path)).status_code == 404


async def test_many_schedules_are_deleted_at_once(database_url: str) -> None:
    async with serving(database_url) as (http, _):
        ids = [
            data_of(await http.post("/schedules", json={**A_SCHEDULE, "name": f"s{n}"}), 201)["id"]
            for n in range(5)
        ]

        assert data_of(await http.delete(f"/schedules?ids={ids[0]},{ids[1]},none")) == {"deleted": 2}
        assert data_of(await http.post("/schedules/delete", json={"ids": ids[1:4]})) == {"deleted": 2}
        assert [s["name"] for s in data_of(await http.get("/schedules"))] == ["s4"]
        error_of(await http.delete("/schedules"), 400, "INVALID_QUERY")
        error_of(
            await http.delete("/schedules?ids=" + ",".join("x" * 3 for _ in range(1001))),
            400,
            "INVALID_QUERY",
        )
        assert (await http.post("/schedules/delete", json={"ids": []})).status_code == 422


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cron": "* * *"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "@reboot"}, "cron"),
        ({"timezone": "Berlin"}, "timezone"),
        ({"target": "no type"}, "target"),
        ({"kind": "url", "target": "gopher://x"}, "target"),
    ],
)
async def test_a_bad_schedule_is_400_with_the_field(database_url: str, change: Any, field: str) -> None:
    async with serving(database_url) as (http, _):
        refused = await http.post("/schedules", json={**A_SCHEDULE, **change})
        assert error_of(refused, 400, "INVALID_SCHEDULE")["details"][0]["field"] == field

        made = data_of(await http.post("/schedules", json=A_SCHEDULE), 201)
        refused = await http.patch(f"/schedules/{made['id']}", json=change)
        assert error_of(refused, 400, "INVALID_SCHEDULE")["details"][0]["field"] == field
        assert data_of(await http.get(f"/schedules/{made['id']}")) == made


async def test_what_is_not_there_is_404_and_bad_limits_are_400(sqlite_url: str) -> None:
    async with serving(sqlite_url) as (http, _):
        for action in ("activate", "deactivate", "run"):
            error_of(await http.post(f"/schedules/none/{action}"), 404, "NOT_FOUND")
        for limit in ("x", "0", "-1", "1.5", "9" * 30):
            error_of(await http.get(f"/schedules/due?limit={limit}"), 400, "INVALID_QUERY")
        error_of(await http.patch("/schedules/none", json={"cron": "@daily"}), 404, "NOT_FOUND")
        again = [await http.post("/schedules", json=A_SCHEDULE) for _ in range(2)]
        assert [answer.status_code for answer in again] == [201, 409]


ROUTES = [
    ("GET", "/schedules"),
    ("HEAD", "/schedules"),
    ("GET", "/schedules/{id}"),
    ("POST", "/schedules"),
    ("PATCH", "/schedules/{id}"),
    ("PUT", "/schedules/{id}"),
    ("PUT", "/schedules/{id}/status"),
    ("DELETE", "/schedules/{id}"),
    ("DELETE", "/schedules?ids={id}"),
    ("POST", "/schedules/delete"),
    ("POST", "/schedules/{id}/activate"),
    ("POST", "/schedules/{id}/deactivate"),
    ("POST", "/schedules/{id}/run"),
    ("GET", "/schedules/due"),
    ("HEAD", "/schedules/due"),
    ("GET", "/schedule_firing"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_only_admins_get_anywhere(sqlite_url: str, method: str, path: str) -> None:
    async with serving(sqlite_url, lambda s: s.add("a", cron="@daily", run="r.v1")) as (http, bench):
        before = await bench.schedules.get("a")
        where = path.replace("{id}", before.id)
        body: dict[str, Any] = (
            {"json": {"ids": [before.id], **A_SCHEDULE}} if method in ("POST", "PATCH", "PUT") else {}
        )

        nobody = await http.request(method, where, headers={"x-user": ""}, **body)
        somebody = await http.request(method, where, headers={"x-roles": "editor"}, **body)

        assert (nobody.status_code, somebody.status_code) == (401, 403)
        assert await bench.schedules.list() == [before]
        assert await bench.runs("r.v1") == []


async def test_history_is_read_only(sqlite_url: str) -> None:
    async with serving(sqlite_url, lambda s: s.add("a", cron="@hourly", run="r.v1")) as (http, bench):
        bench.clock.advance(HOUR)
        await bench.scheduler.tick()
        [firing] = data_of(await http.get("/schedule_firing"))

        for method in ("PATCH", "DELETE"):
            answer = await http.request(method, f"/schedule_firing/{firing['id']}", json={"manual": True})
            assert answer.status_code == 405
        assert (await http.post("/schedule_firing", json=firing)).status_code == 405


async def test_clients_cannot_open_the_inner_network_or_move_due_times(sqlite_url: str) -> None:
    async with serving(sqlite_url) as (http, _):
        sneaky = {**A_SCHEDULE, "allow_private": True, "next_run_at": "2020-01-01T00:00:00Z"}

        answer = await http.post("/schedules", json=sneaky)

        made = data_of(answer, 201)
        assert (made["allow_private"], made["next_run_at"]) == (False, "2026-01-01T01:00:00Z")


async def test_a_client_that_changes_an_inner_address_loses_the_way_in(sqlite_url: str) -> None:
    def declare(schedules: Schedules) -> None:
        schedules.add("in", cron="@daily", url="http://10.0.0.1/", allow_private=True)

    async with serving(sqlite_url, declare) as (http, bench):
        path = f"/schedules/{(await bench.schedules.get('in')).id}"

        same = data_of(await http.patch(path, json={"cron": "@hourly", "target": "http://10.0.0.1/"}))
        refused = await http.patch(path, json={"target": "http://10.0.0.2/"})
        other = data_of(await http.patch(path, json={"target": "http://inner.example/"}))

        assert error_of(refused, 400, "INVALID_SCHEDULE")["details"][0]["field"] == "target"
        assert (same["allow_private"], other["allow_private"]) == (True, False)


async def test_a_client_has_nothing_of_its_own_sent_into_the_inner_network(sqlite_url: str) -> None:
    """Whoever may not name such an address may not say either what is sent there, whatever its role."""

    def declare(schedules: Schedules) -> None:
        schedules.add("in", cron="@daily", url="http://10.0.0.1/", allow_private=True, payload={"a": 1})

    async with serving(sqlite_url, declare) as (http, bench):
        path = f"/schedules/{(await bench.schedules.get('in')).id}"
        inner = {"kind": "url", "target": "http://10.0.0.1/"}
        for method in ("PATCH", "PUT"):
            for body in ({"payload": {"a": 2}}, {**inner, "payload": {"a": 2}}, {"payload": None}):
                refused = await http.request(method, path, json=body)
                assert error_of(refused, 400, "INVALID_SCHEDULE")["details"][0]["field"] == "payload"
        moved = data_of(await http.patch(path, json={**inner, "payload": {"a": 1}, "cron": "@hourly"}))
        assert (moved["cron"], moved["allow_private"], moved["payload"]) == ("@hourly", True, {"a": 1})
        away = {"target": "http://inner.example/", "payload": {"a": 2}}
        assert data_of(await http.patch(path, json=away))["allow_private"] is False


class Report(BaseModel):
    month: str
    copies: int = 1


class Note(Model):
    text: str = field(max_length=5)


def with_targets(server: Server) -> None:
    with_auth(server)
    server.register(Note)

    @server.work.handler("typed.v1", payload=Report)
    async def typed(run: Any) -> None: ...

    @server.action("POST", "/tidy", request=Report, schedulable=True)
    async def tidy(ctx: Context) -> None: ...

    @server.action("POST", "/note", request=Note, schedulable=True)
    async def note(ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"target": "typed.v1"}, "payload.month"),
        ({"target": "typed.v1", "payload": {"month": "may", "copies": "x"}}, "payload.copies"),
        ({"target": "typed.v1", "payload": 7}, "payload"),
        ({"kind": "action", "target": "tidy"}, "payload"),
        ({"kind": "action", "target": "tidy", "payload": {}}, "payload.month"),
        ({"kind": "action", "target": "note", "payload": {"text": "too long"}}, "payload.text"),
        ({"kind": "url", "target": "http://127.0.0.1:9/"}, "target"),
        ({"kind": "url", "target": "http://2130706433/"}, "target"),
        ({"kind": "url", "target": "https://[::1]/"}, "target"),
        ({"kind": "url", "target": "http://169.254.169.254/latest"}, "target"),
    ],
)
async def test_what_could_never_work_is_refused_from_code_and_clients_alike(
    database_url: str, said: dict[str, Any], field: str
) -> None:
    kind, payload = said.get("kind", "run"), said.get("payload")
    options: dict[str, Any] = {kind: said["target"], "payload": payload}
    async with serving(database_url, handlers=with_targets) as (http, bench):
        made = data_of(await http.post("/schedules", json=A_SCHEDULE), 201)
        answers = [
            await http.post("/schedules", json={**A_SCHEDULE, "name": "other", **said}),
            await http.patch(f"/schedules/{made['id']}", json=said),
        ]
        for answer in answers:
            assert error_of(answer, 400, "INVALID_SCHEDULE")["details"][0]["field"] == field
        with pytest.raises(InvalidSchedule, match=f"^{field}:"):
            await bench.schedules.create("other", cron="@daily", **options)
        with pytest.raises(InvalidSchedule, match=f"^{field}:"):
            await bench.schedules.update(made["id"], **options)
        assert data_of(await http.get("/schedules")) == [made]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"run": "typed.v1"}, "payload.month"),
        ({"action": "tidy"}, "payload"),
        ({"action": "tidy", "payload": {"month": 5}}, "payload.month"),
        ({"url": "http://10.1.2.3/"}, "target"),
    ],
)
def test_a_declared_schedule_that_could_never_work_stops_the_start(
    options: dict[str, Any], field: str
) -> None:
    server = Server("sqlite://:memory:")
    with_targets(server)
    server.schedules.add("nightly", cron="@daily", **options)

    with pytest.raises(DeclarationError, match=f"schedule 'nightly': {field}:"):
        server.seal()


async def test_what_fits_or_is_not_known_here_is_kept(sqlite_url: str) -> None:
    month = {"month": "may"}
    kept: list[dict[str, Any]] = [
        {"target": "typed.v1", "payload": month},
        {"target": "of.another.process", "payload": 7},
        {"kind": "action", "target": "tidy", "payload": month},
        {"kind": "action", "target": "note", "payload": {"text": "short"}},
        {"kind": "url", "target": "http://inner.example/"},
        {"kind": "url", "target": "http://93.184.216.34/"},
    ]
    async with serving(sqlite_url, handlers=with_targets) as (http, bench):
        for n, said in enumerate(kept):
            data_of(await http.post("/schedules", json={**A_SCHEDULE, "name": f"s{n}", **said}), 201)
        inner = await bench.schedules.create("in", cron="@daily", url="http://127.0.0.1/", allow_private=True)

        assert inner.status == "active"


async def test_a_schedule_that_cannot_work_any_more_can_still_be_switched_off(sqlite_url: str) -> None:
    async with serving(sqlite_url, handlers=with_targets) as (http, bench):
        said = {**A_SCHEDULE, "target": "typed.v1", "payload": {"month": "may"}}
        path = f"/schedules/{data_of(await http.post('/schedules', json=said), 201)['id']}"
        await bench.server.raw_exec("UPDATE schedules SET payload = ?", "{}")  # as for an older handler

        assert data_of(await http.patch(path, json={"name": "old"}))["name"] == "old"
        assert data_of(await http.post(f"{path}/deactivate"))["status"] == "inactive"
        error_of(await http.post(f"{path}/activate"), 400, "INVALID_SCHEDULE")
        assert data_of(await http.patch(path, json={"payload": {"month": "june"}}))["status"] == "inactive"
        assert data_of(await http.post(f"{path}/activate"))["status"] == "active"


async def test_head_of_what_is_due_is_get_without_its_body(database_url: str) -> None:
    async with serving(database_url, lambda s: s.add("a", cron="@hourly", run="r.v1")) as (http, bench):
        bench.clock.advance(HOUR)

        got, head = await http.get("/schedules/due"), await http.head("/schedules/due")

        assert len(data_of(got)) == 1
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == got.headers["content-length"]


async def test_what_clients_may_not_submit_is_no_target_of_theirs(sqlite_url: str) -> None:
    def handlers(server: Server) -> None:
        with_auth(server)

        @server.work.handler("own.v1", internal=True)
        async def own(run: Any) -> None:
            """The server's own."""

    def declare(schedules: Schedules) -> None:
        schedules.add("mine", cron="@daily", run="own.v1", payload={"a": 1})
        schedules.add("open", cron="@daily", run="open.v1")

    async with serving(sqlite_url, declare, handlers) as (http, bench):
        for target in ("own.v1", "schedule.url.v1", "schedule.action.v1"):
            refused = await http.post("/schedules", json={**A_SCHEDULE, "target": target})
            assert error_of(refused, 400, "INVALID_SCHEDULE")["details"][0]["field"] == "target"
            path = f"/schedules/{(await bench.schedules.get('open')).id}"
            error_of(await http.patch(path, json={"target": target}), 400, "INVALID_SCHEDULE")
        path = f"/schedules/{(await bench.schedules.get('mine')).id}"
        error_of(await http.patch(path, json={"payload": {"a": 2}}), 400, "INVALID_SCHEDULE")
        assert data_of(await http.patch(path, json={"cron": "@hourly"}))["cron"] == "@hourly"


def with_actions(server: Server) -> None:
    with_auth(server)

    @server.action("POST", "/close", request=dict)
    async def close(ctx: Context) -> None: ...

    @server.action("POST", "/tidy", schedulable=True)
    async def tidy(ctx: Context) -> None: ...


async def test_clients_schedule_the_actions_that_are_declared_schedulable(database_url: str) -> None:
    def declare(schedules: Schedules) -> None:
        schedules.add("mine", cron="@daily", action="close", payload={"a": 1})
        schedules.add("open", cron="@daily", run="open.v1")

    async with serving(database_url, declare, with_actions) as (http, bench):
        close = {"kind": "action", "target": "close", "payload": {"a": 2}}
        mine, opened = [f"/schedules/{(await bench.schedules.get(name)).id}" for name in ("mine", "open")]
        for refused in (
            await http.post("/schedules", json={**A_SCHEDULE, **close}),
            await http.patch(opened, json=close),
            await http.put(opened, json=close),
            await http.patch(mine, json={"payload": {"a": 2}}),
        ):
            [detail] = error_of(refused, 400, "INVALID_SCHEDULE")["details"]
            assert (detail["field"], detail["message"]) == (
                "target",
                "the action 'close' is not declared schedulable",
            )
        unknown = await http.post("/schedules", json={**A_SCHEDULE, "kind": "action", "target": "clos"})
        assert "there is no action 'clos'" in error_of(unknown, 400, "INVALID_SCHEDULE")["message"]

        tidy = {**A_SCHEDULE, "kind": "action", "target": "tidy"}
        assert data_of(await http.post("/schedules", json=tidy), 201)["target"] == "tidy"
        # What code declared is code's: it can be moved, switched and fired, as it is.
        assert data_of(await http.patch(mine, json={"cron": "@hourly"}))["cron"] == "@hourly"
        assert data_of(await http.post(f"{mine}/deactivate"))["status"] == "inactive"
        assert data_of(await http.post(f"{mine}/activate"))["status"] == "active"
        data_of(await http.post(f"{mine}/run"), 202)


@pytest.mark.parametrize("path", ["/orders/{id}/pay", "/tidy"])
def test_a_schedulable_action_that_no_schedule_can_call_stops_the_start(path: str) -> None:
    server = Server("sqlite://:memory:")
    server.action("POST", path, name="tidy", schedulable=True)(lambda ctx: None)
    server.action("GET", "/other", name="tidy" if path == "/tidy" else "other")(lambda ctx: None)

    with pytest.raises(
        DeclarationError, match="it is schedulable, but a schedule calls an action by its name"
    ):
        server.seal()


async def test_a_schedule_says_who_made_and_who_changed_it(database_url: str) -> None:
    def handlers(server: Server) -> None:
        with_auth(server)

        @server.action("POST", "/make")
        async def make(ctx: Context) -> None:
            await server.schedules.create("made", cron="@daily", run="r.v1")

    async with serving(database_url, lambda s: s.add("code", cron="@daily", run="r.v1"), handlers) as (
        http,
        bench,
    ):
        bob = {"x-user": "bob", "x-roles": "admin"}

        async def signed(name: str) -> tuple[str | None, str | None]:
            found = await bench.schedules.get(name)
            return found.created_by, found.updated_by

        sneaky = {**A_SCHEDULE, "created_by": "eve", "updated_by": "eve"}
        path = f"/schedules/{data_of(await http.post('/schedules', json=sneaky), 201)['id']}"
        assert await signed("nightly") == ("ada", "ada")
        for change in (
            http.patch(path, json={"cron": "@hourly", "created_by": "eve"}, headers=bob),
            http.put(path, json={"cron": "@daily", "updated_by": "eve"}),
            http.post(f"{path}/deactivate", headers=bob),
            http.put(f"{path}/status", json={"status": "active"}),
        ):
            who = data_of(await change)["updated_by"]
            assert await signed("nightly") == ("ada", who)
        assert who == "ada"
        await bench.schedules.update("nightly", cron="@hourly")
        assert await signed("nightly") == ("ada", None)
        assert await signed("code") == (None, None)
        await http.post("/make", headers=bob)
        assert await signed("made") == ("bob", "bob")
        await http.post(f"{path}/run", headers=bob)
        assert await signed("nightly") == ("ada", None)
        found = data_of(await http.get("/schedules?filter=created_by:eq:bob"))
        assert [one["name"] for one in found] == ["made"]


async def test_put_changes_what_it_is_given(database_url: str) -> None:
    async with serving(database_url) as (http, _):
        made = data_of(await http.post("/schedules", json=A_SCHEDULE), 201)
        path = f"/schedules/{made['id']}"

        changed = data_of(await http.put(path, json={"cron": "0 3 * * *"}))

        assert changed["next_run_at"] == "2026-01-01T02:00:00Z"
        assert {**changed, "cron": made["cron"], "next_run_at": made["next_run_at"]} == {
            **made,
            "updated_at": changed["updated_at"],
        }
        error_of(await http.put(path, json={"cron": "* * *"}), 400, "INVALID_SCHEDULE")
        error_of(await http.put("/schedules/none", json={"cron": "@daily"}), 404, "NOT_FOUND")


async def test_put_of_a_status_switches_a_schedule_on_and_off(database_url: str) -> None:
    async with serving(database_url) as (http, _):
        path = f"/schedules/{data_of(await http.post('/schedules', json=A_SCHEDULE), 201)['id']}/status"

        off = data_of(await http.put(path, json={"status": "inactive"}))
        on = data_of(await http.put(path, json={"status": "active"}))

        assert (off["status"], off["next_run_at"]) == ("inactive", None)
        assert (on["status"], on["next_run_at"]) == ("active", "2026-01-01T01:00:00Z")
        for body in ({"status": "paused"}, {}, {"status": None}):
            error_of(await http.put(path, json=body), 422, "VALIDATION_FAILED")
        error_of(await http.put(path), 400, "EMPTY_BODY")
        missing = await http.put("/schedules/none/status", json={"status": "active"})
        error_of(missing, 404, "NOT_FOUND")


async def test_a_listed_schedule_that_is_not_there_is_blamed_on_no_middleware(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(sqlite_url) as (http, _):
        made = data_of(await http.post("/schedules", json=A_SCHEDULE), 201)
        error_of(await http.delete(f"/schedules/{made['id']},none"), 404, "NOT_FOUND")
    assert "by_header" not in caplog.text


async def test_a_path_may_list_the_schedules_to_delete(database_url: str) -> None:
    async with serving(database_url) as (http, bench):
        ids = [
            data_of(await http.post("/schedules", json={**A_SCHEDULE, "name": f"s{n}"}), 201)["id"]
            for n in range(4)
        ]

        error_of(await http.delete(f"/schedules/{ids[0]},none"), 404, "NOT_FOUND")
        assert len(await bench.schedules.list()) == 4  # all or none
        assert (await http.delete(f"/schedules/{ids[0]},{ids[1]},{ids[0]}")).status_code == 204
        assert (await http.delete(f"/schedules/{ids[2]}")).status_code == 204
        assert [s.name for s in await bench.schedules.list()] == ["s3"]
        error_of(await http.delete("/schedules/" + ",".join("x" * 1001)), 400, "INVALID_QUERY")
        error_of(await http.delete("/schedules/,"), 400, "INVALID_QUERY")


async def test_rules_of_the_application_hold_for_every_route(database_url: str) -> None:
    seen = []

    async def only_reports(ctx: Context, next: Next) -> None:
        ctx.query.force("target", "report.v1")
        await next()

    async def noted(ctx: Context, next: Next) -> None:
        seen.append(ctx.operation)
        await next()

    def handlers(server: Server) -> None:
        with_auth(server)
        server.pipeline.auth.register(only_reports, models=[Schedule])
        server.pipeline.service.register(noted, models=[Schedule])

    def declare(schedules: Schedules) -> None:
        schedules.add("mine", cron="@hourly", run="report.v1")
        schedules.add("other", cron="@hourly", run="other.v1")

    async with serving(database_url, declare, handlers) as (http, bench):
        mine, other = [(await bench.schedules.get(name)).id for name in ("mine", "other")]
        for action in ("activate", "deactivate", "run"):
            error_of(await http.post(f"/schedules/{other}/{action}"), 404, "NOT_FOUND")
        bench.clock.advance(HOUR)
        assert [s["id"] for s in data_of(await http.get("/schedules/due"))] == [mine]
        data_of(await http.post(f"/schedules/{mine}/run"), 202)
        assert data_of(await http.delete(f"/schedules?ids={mine},{other}")) == {"deleted": 1}
        assert data_of(await http.post("/schedules/delete", json={"ids": [mine, other]})) == {"deleted": 0}
        left = await bench.schedules.get("other")

    assert left.status == "active"
    assert seen == ["update"] * 3 + ["list", "update", "delete", "delete"]


async def test_the_routes_say_which_methods_they_have(sqlite_url: str) -> None:
    async with serving(sqlite_url) as (http, bench):
        for path, methods in (
            ("/schedules", "DELETE, GET, HEAD, OPTIONS, POST"),
            ("/schedules/x", "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"),
            ("/schedules/x/status", "OPTIONS, PUT"),
            ("/schedules/due", "GET, HEAD, OPTIONS"),
            ("/schedules/delete", "OPTIONS, POST"),
            ("/schedule_firing", "GET, HEAD, OPTIONS"),
            ("/schedule_firing/x", "GET, HEAD, OPTIONS"),
        ):
            answer = await http.options(path)
            assert (answer.status_code, answer.headers["allow"]) == (204, methods)
        paths = (await bench.server.openapi())["paths"]

    assert "202" in paths["/api/schedules/{id}/run"]["post"]["responses"]
    assert "200" not in paths["/api/schedules/{id}/run"]["post"]["responses"]


async def test_the_routes_can_be_left_out(sqlite_url: str) -> None:
    async with serving(sqlite_url, lambda s: s.enable(routes=False)) as (http, bench):
        assert (await http.get("/schedules")).status_code == 404
        assert (await bench.schedules.create("a", cron="@daily", run="r.v1")).status == "active"


async def test_the_description_tells_of_every_route(sqlite_url: str) -> None:
    async with serving(sqlite_url) as (_, bench):
        paths = (await bench.server.openapi())["paths"]

    for method, path in ((m, p) for m, p in ROUTES if m != "HEAD"):
        assert method.lower() in paths[f"/api{path.split('?')[0]}"], path
