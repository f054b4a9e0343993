"""The service for companies: tenants, roles, the quota of a plan, invitations, sessions."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.saas.models import Invitation, Member, Organization, Project
from examples.saas.server import create_server
from maniflex import Config, Server
from maniflex.testing import FakeClock, client
from tests.kit.processes import IMPORTS, free_port, start_process
from tests.kit.walkthrough import example_command

PASSWORD = "correct horse"
SECRET = "a-secret-of-more-than-32-bytes-for-tests"


@dataclass
class Caller:
    """Somebody who is signed in."""

    http: httpx.AsyncClient
    id: str
    organization_id: str
    tokens: dict[str, Any]

    async def __call__(
        self, method: str, path: str, headers: dict[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        sent = {"authorization": f"Bearer {self.tokens['access_token']}", **(headers or {})}
        return await self.http.request(method, f"/api{path}", headers=sent, **options)

    async def data(self, path: str) -> Any:
        answer = await self("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    async def create_project(self, name: str = "Atlas", **values: Any) -> httpx.Response:
        return await self("POST", "/projects", json={"name": name, "owner_id": self.id, **values})


@asynccontextmanager
async def serving(database: str, **options: Any) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    server = create_server(Config(), SECRET)
    async with client(server, database=database, **options) as http:
        yield server, http


async def sign_in(http: httpx.AsyncClient, email: str) -> dict[str, Any]:
    answer = await http.post("/api/auth/login", json={"email": email, "password": PASSWORD})
    assert answer.status_code == 200, answer.text
    tokens: dict[str, Any] = answer.json()["data"]
    return tokens


async def sign_up(http: httpx.AsyncClient, organization: str, email: str) -> Caller:
    body = {"organization": organization, "email": email, "password": PASSWORD}
    answer = await http.post("/api/signup", json=body)
    assert answer.status_code == 201, answer.text
    made = answer.json()["data"]
    return Caller(http, made["member"]["id"], made["organization"]["id"], await sign_in(http, email))


async def join(server: Server, owner: Caller, role: str) -> Caller:
    """One more member of the owner's organization, by invitation."""
    email = f"{role}-{owner.organization_id}@example.com"
    assert (await owner("POST", "/invitations", json={"email": email, "role": role})).status_code == 201
    await server.work.worker().drain()
    [mail] = await owner.data(f"/mails?filter=to:eq:{email}")
    code = mail["text"].split()[-1]
    answer = await owner.http.post("/api/invitations/accept", json={"code": code, "password": PASSWORD})
    assert answer.status_code == 201, answer.text
    member = answer.json()["data"]
    return Caller(owner.http, member["id"], owner.organization_id, await sign_in(owner.http, email))


def outcome(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"] if answer.status_code >= 400 else ""


# -- signing up


async def test_a_sign_up_makes_both_records_or_none(database_url: str) -> None:
    async with serving(database_url) as (server, http):
        await sign_up(http, "Acme", "alice@acme.example")
        body = {"organization": "Copy", "email": "ALICE@acme.example", "password": PASSWORD}
        again = await http.post("/api/signup", json=body)
        organizations = await server.db(Organization).list()
        [alice] = await server.db(Member).list()

    assert outcome(again) == (409, "CONFLICT")
    assert [one.name for one in organizations] == ["Acme"]
    assert (alice.role, alice.password[:10]) == ("owner", "$argon2id$")


async def test_a_sign_up_that_is_sent_again_happens_once(database_url: str) -> None:
    body = {"organization": "Acme", "email": "alice@acme.example", "password": PASSWORD}
    async with serving(database_url) as (server, http):
        first, again = [
            await http.post("/api/signup", json=body, headers={"Idempotency-Key": "1"}) for _ in range(2)
        ]
        organizations = await server.db(Organization).count()

    assert (first.status_code, again.content, organizations) == (201, first.content, 1)
    assert again.headers["idempotent-replayed"] == "true"


async def test_what_is_wrong_with_a_sign_up_is_said_at_once_and_in_plain_words(database_url: str) -> None:
    async with serving(database_url) as (_, http):
        body = {"organization": "", "email": "alice", "password": "horse"}
        refused = await http.post("/api/signup", json=body)

    assert outcome(refused) == (422, "VALIDATION_FAILED")
    assert {problem["field"]: problem["message"] for problem in refused.json()["error"]["details"]} == {
        "organization": 'field "organization" must have at least 1 characters',
        "email": "this is no e-mail address",
        "password": 'field "password" must have at least 8 characters',
    }


# -- tenants


async def test_another_tenant_finds_nothing_anywhere(database_url: str) -> None:
    counting = json.dumps({"select": [{"op": "count"}]})
    async with serving(database_url) as (server, http):
        alice = await sign_up(http, "Acme", "alice@acme.example")
        carol = await sign_up(http, "Globex", "carol@globex.example")
        project = (await alice.create_project()).json()["data"]
        path = f"/projects/{project['id']}"
        alone = [
            outcome(await carol("GET", path)),
            outcome(await carol("PATCH", path, json={"name": "Mine"})),
            outcome(await carol("DELETE", path)),
            outcome(await carol("GET", f"/members/{alice.id}")),
            outcome(await carol("GET", f"/organizations/{alice.organization_id}")),
            outcome(await carol("PATCH", f"/organizations/{alice.organization_id}", json={"plan": "pro"})),
        ]
        filtered = await carol.data(f"/projects?filter=organization_id:eq:{alice.organization_id}")
        organizations = await carol.data("/organizations?include=members,projects")
        counted = await carol.data(f"/projects/aggregate?aggregate={counting}")
        exported = (await carol("GET", "/projects/export")).text
        kept = await server.db(Project).read(project["id"])

    assert set(alone) == {(404, "NOT_FOUND")}
    assert (filtered, counted) == ([], [{"count": 0}])
    assert [(o["name"], len(o["members"]), o["projects"]) for o in organizations] == [("Globex", 1, [])]
    assert project["id"] not in exported
    assert (kept.name, kept.organization_id) == ("Atlas", alice.organization_id)


async def test_a_row_for_another_tenant_is_refused_and_named_so(database_url: str) -> None:
    async with serving(database_url) as (server, http):
        alice = await sign_up(http, "Acme", "alice@acme.example")
        carol = await sign_up(http, "Globex", "carol@globex.example")
        made = await alice.create_project(organization_id=carol.organization_id)
        own = await alice.create_project(organization_id=alice.organization_id)
        path = f"/projects/{own.json()['data']['id']}"
        moved = await alice("PATCH", path, json={"organization_id": carol.organization_id})
        foreign_owner = await alice.create_project(owner_id=carol.id)
        projects = await server.db(Project).list()

    assert outcome(made) == outcome(moved) == (403, "TENANT_MISMATCH")
    assert outcome(own) == (201, "")
    assert outcome(foreign_owner) == (409, "CONFLICT")
    assert [project.organization_id for project in projects] == [alice.organization_id]


# -- the quota


async def test_a_plan_is_never_overdrawn_by_requests_at_once(database_url: str, tmp_path: Path) -> None:
    """Fifty clients at once, two processes: the free plan has room for three, pro for 25."""
    port = free_port()
    command = example_command("saas", port, "--workers", "2")
    settings = {"DB_WRITE_URL": database_url, "PYTHONPATH": IMPORTS, "ACCESS_LOG": "false"}
    with start_process(command, port, cwd=tmp_path, **settings) as served:
        served.until_up()
        limits = httpx.Limits(max_connections=50)
        async with httpx.AsyncClient(base_url=served.url, limits=limits, timeout=60) as http:
            alice = await sign_up(http, "Acme", "alice@acme.example")
            carol = await sign_up(http, "Globex", "carol@globex.example")
            free = await create_at_once(alice)
            upgraded = await alice("PATCH", f"/organizations/{alice.organization_id}", json={"plan": "pro"})
            pro = await create_at_once(alice)
            total = (await alice("GET", "/projects")).json()["meta"]["total"]
            others = await carol.create_project()

    assert free == {(201, ""): 3, (402, "PROJECT_LIMIT"): 47}
    assert upgraded.status_code == 200
    assert pro == {(201, ""): 22, (402, "PROJECT_LIMIT"): 28}
    assert (total, others.status_code) == (25, 201)


async def create_at_once(caller: Caller, clients: int = 50) -> Counter[tuple[int, str]]:
    answers = await asyncio.gather(*(caller.create_project(f"P{n}") for n in range(clients)))
    return Counter(map(outcome, answers))


async def test_the_description_has_the_codes_of_the_application(database_url: str) -> None:
    async with serving(database_url) as (_, http):
        alice = await sign_up(http, "Acme", "alice@acme.example")
        paths = (await alice("GET", "/openapi.json")).json()["paths"]

    assert paths["/api/projects"]["post"]["x-error-codes"]["402"] == ["PROJECT_LIMIT"]
    assert "LAST_OWNER" in paths["/api/members/{id}"]["delete"]["x-error-codes"]["409"]


async def test_a_deleted_project_makes_room(database_url: str) -> None:
    async with serving(database_url) as (_, http):
        alice = await sign_up(http, "Acme", "alice@acme.example")
        projects = [(await alice.create_project(f"P{n}")).json()["data"] for n in range(3)]
        full = await alice.create_project()
        deleted = await alice("DELETE", f"/projects/{projects[0]['id']}")
        room = await alice.create_project()

    assert outcome(full) == (402, "PROJECT_LIMIT")
    assert full.json()["error"]["message"] == 'plan "free" allows 3 projects; upgrade to add more'
    assert (deleted.status_code, room.status_code) == (204, 201)


async def test_a_repeated_create_takes_one_place(database_url: str) -> None:
    key = {"Idempotency-Key": "moon"}
    async with serving(database_url) as (_, http):
        alice = await sign_up(http, "Acme", "alice@acme.example")
        body = {"name": "Moon", "owner_id": alice.id}
        answers = await asyncio.gather(
            *(alice("POST", "/projects", json=body, headers=key) for _ in range(10))
        )
        total = (await alice("GET", "/projects")).json()["meta"]["total"]

    assert {answer.status_code for answer in answers} == {201}
    assert (len({answer.content for answer in answers}), total) == (1, 1)


# -- roles and states


async def test_each_role_may_do_what_the_page_says(database_url: str) -> None:
    async with serving(database_url) as (server, http):
        owner = await sign_up(http, "Acme", "alice@acme.example")
        callers = {"owner": owner} | {r: await join(server, owner, r) for r in ("admin", "editor", "viewer")}
        project = (await owner.create_project()).json()["data"]["id"]
        wanted: dict[str, tuple[str, str, dict[str, Any]]] = {
            "read": ("GET", "/projects", {}),
            "members": ("GET", "/members", {}),
            "change": ("PATCH", f"/projects/{project}", {"json": {"name": "Atlas"}}),
            "invite": ("POST", "/invitations", {"json": {"email": "x@example.com"}}),
            "mails": ("GET", "/mails", {}),
            "rename": ("PATCH", f"/organizations/{owner.organization_id}", {"json": {"name": "Acme"}}),
            "plan": ("PATCH", f"/organizations/{owner.organization_id}", {"json": {"plan": "free"}}),
            "remove": ("DELETE", "/members/nobody", {}),
            "archive": ("PATCH", f"/projects/{project}", {"json": {"status": "archived"}}),
            "revive": ("PATCH", f"/projects/{project}", {"json": {"status": "active"}}),
            "delete": ("DELETE", "/projects/nothing", {}),
        }
        allowed: dict[str, list[str]] = {}
        for role in ("viewer", "editor", "admin", "owner"):
            answers = {name: await callers[role](m, p, **o) for name, (m, p, o) in wanted.items()}
            allowed[role] = [n for n, a in answers.items() if a.status_code not in (403, 422)]

    # An admin archives the project; "revive" of viewers and editors leaves an active project as it is.
    assert allowed == {
        "viewer": ["read", "members"],
        "editor": ["read", "members", "change", "revive"],
        "admin": ["read", "members", "change", "invite", "mails", "rename", "archive", "delete"],
        "owner": list(wanted),
    }


async def test_a_role_counts_from_the_next_request_on(database_url: str) -> None:
    async with serving(database_url) as (server, http):
        owner = await sign_up(http, "Acme", "alice@acme.example")
        viewer = await join(server, owner, "viewer")
        before = await viewer.create_project()
        own_try = await viewer("PATCH", f"/members/{viewer.id}", json={"role": "owner"})
        promoted = await owner("PATCH", f"/members/{viewer.id}", json={"role": "editor"})
        after = await viewer.create_project()
        handed_over = await owner("DELETE", f"/members/{viewer.id}")
        await owner("PATCH", f"/projects/{after.json()['data']['id']}", json={"owner_id": owner.id})
        removed = await owner("DELETE", f"/members/{viewer.id}")
        gone = await viewer("GET", "/projects")
        refreshed = await http.post(
            "/api/auth/refresh", json={"refresh_token": viewer.tokens["refresh_token"]}
        )

    assert outcome(before) == (403, "FORBIDDEN")
    assert outcome(own_try) == (403, "FIELD_FORBIDDEN")
    assert (promoted.status_code, after.status_code) == (200, 201)
    assert outcome(handed_over) == (409, "DELETE_RESTRICTED")
    assert removed.status_code == 204
    assert outcome(gone) == (401, "TOKEN_REVOKED")
    assert outcome(refreshed) == (401, "INVALID_REFRESH_TOKEN")


async def test_nobody_sets_the_password_of_somebody_else(database_url: str) -> None:
    async with serving(database_url) as (server, http):
        owner = await sign_up(http, "Acme", "alice@acme.example")
        admin = await join(server, owner, "admin")
        taken = {"json": {"password": "taken over"}}
        tries = [
            outcome(await owner("PATCH", f"/members/{admin.id}", **taken)),
            outcome(await admin("PATCH", f"/members/{owner.id}", **taken)),
        ]
        own = await admin("PATCH", f"/members/{admin.id}", **taken)
        [stored] = await server.db(Member).list({"id": admin.id})
        signed_out = await admin("GET", "/projects")

    assert outcome(signed_out) == (401, "TOKEN_REVOKED")
    assert tries == [(403, "FIELD_FORBIDDEN")] * 2
    assert own.status_code == 200
    assert stored.password.startswith("$argon2id$")


async def test_two_owners_cannot_remove_each_other(database_url: str) -> None:
    async with serving(database_url) as (server, http):
        alice = await sign_up(http, "Acme", "alice@acme.example")
        bob = await join(server, alice, "admin")
        await alice("PATCH", f"/members/{bob.id}", json={"role": "owner"})
        answers = await asyncio.gather(
            alice("DELETE", f"/members/{bob.id}"),
            bob("PATCH", f"/members/{alice.id}", json={"role": "viewer"}),
        )
        owners = await server.db(Member).list({"role": "owner"})

    assert len(owners) == 1
    assert Counter(answer.status_code < 300 for answer in answers) == {True: 1, False: 1}
    assert {outcome(answer) for answer in answers if answer.status_code >= 300} <= {
        (409, "LAST_OWNER"),
        (401, "INVALID_TOKEN"),
        (403, "FORBIDDEN"),
        (404, "NOT_FOUND"),
    }


@pytest.mark.parametrize(("change", "code"), [("active", ""), ("paused", "INVALID_TRANSITION")])
async def test_an_archived_project_is_taken_back_and_not_paused(
    change: str, code: str, database_url: str
) -> None:
    async with serving(database_url) as (_, http):
        alice = await sign_up(http, "Acme", "alice@acme.example")
        archived_at_once = await alice.create_project(status="archived")
        path = f"/projects/{(await alice.create_project()).json()['data']['id']}"
        assert (await alice("PATCH", path, json={"status": "archived"})).status_code == 200
        changed = await alice("PATCH", path, json={"status": change})

    assert outcome(archived_at_once) == (422, "INVALID_TRANSITION")
    assert outcome(changed)[1] == code


# -- invitations and sessions


async def test_an_invitation_that_is_refused_sends_nothing(database_url: str) -> None:
    async with serving(database_url) as (server, http):
        alice = await sign_up(http, "Acme", "alice@acme.example")
        refused = await alice("POST", "/invitations", json={"email": "bob", "role": "owner"})
        made = await alice("POST", "/invitations", json={"email": "bob@acme.example"})
        await server.work.worker().drain()
        mails = await alice.data("/mails")
        runs = await alice.data("/workflow_run")
        [stored] = await server.db(Invitation).list()

    assert outcome(refused) == (422, "VALIDATION_FAILED")
    assert made.status_code == 201
    assert [mail["to"] for mail in mails] == ["bob@acme.example"]
    assert [(run["type"], run["status"]) for run in runs] == [("mail.invite.v1", "succeeded")]
    assert stored.code_digest is not None
    assert "code_digest" not in made.json()["data"]
    assert mails[0]["text"].split()[-1] not in (stored.code_digest, str(runs))


async def test_a_code_makes_one_member_and_ends_after_a_week(database_url: str) -> None:
    clock = FakeClock()
    async with serving(database_url, clock=clock) as (server, http):
        alice = await sign_up(http, "Acme", "alice@acme.example")
        codes = []
        for email in ("bob@acme.example", "late@acme.example"):
            await alice("POST", "/invitations", json={"email": email})
            await server.work.worker().drain()
            [mail] = await alice.data(f"/mails?filter=to:eq:{email}")
            codes.append(mail["text"].split()[-1])

        async def accept(code: str) -> tuple[int, str]:
            answer = await http.post("/api/invitations/accept", json={"code": code, "password": PASSWORD})
            return outcome(answer)

        twins = await asyncio.gather(*(accept(codes[0]) for _ in range(5)))
        clock.advance(timedelta(days=7, seconds=1))
        late, unknown = await accept(codes[1]), await accept("no such code")
        members = await server.db(Member).count()

    assert sorted(status for status, _ in twins) == [201, 409, 409, 409, 409]
    assert (late, unknown) == ((409, "INVITATION_OVER"), (404, "NO_INVITATION"))
    assert members == 2


async def test_a_session_is_refreshed_once_and_ends_with_its_logout(database_url: str) -> None:
    async with serving(database_url) as (_, http):
        alice = await sign_up(http, "Acme", "alice@acme.example")
        used = {"refresh_token": alice.tokens["refresh_token"]}
        refreshed = await http.post("/api/auth/refresh", json=used)
        again = await http.post("/api/auth/refresh", json=used)
        alice.tokens = refreshed.json()["data"]
        kept_tenant = await alice.data("/organizations")
        ended = await alice("POST", "/auth/logout")
        gone = await alice("GET", "/projects")
        wrong = await http.post(
            "/api/auth/login", json={"email": "alice@acme.example", "password": "wrong horse"}
        )

    assert (refreshed.status_code, ended.status_code) == (200, 204)
    assert outcome(again) == (401, "INVALID_REFRESH_TOKEN")
    assert [organization["id"] for organization in kept_tenant] == [alice.organization_id]
    assert outcome(gone) == (401, "TOKEN_REVOKED")
    assert outcome(wrong) == (401, "INVALID_CREDENTIALS")
