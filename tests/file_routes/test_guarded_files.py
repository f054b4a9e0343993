"""A file is open to those who may read a record that names it: rules by ways."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from maniflex import AuthInfo, Context, Model, Next, Run, Server, file
from maniflex import field as column
from maniflex.admin import ModelAdmin
from maniflex.middleware import auth, db, response
from maniflex.testing import FakeClock, client
from tests.file_routes.world import PNG, a_server
from tests.kit.http import data_of, error_of
from tests.kit.panel import Browser, add_superuser, visiting

NAME = "treasure-map.png"
CONTENT = PNG + b"where the gold is"
PART = (NAME, CONTENT, "image/png")
ADA = {"x-user": "ada", "x-tenant": "red", "x-role": "boss", "x-api-key": "ada's"}
EVE = {"x-user": "eve", "x-tenant": "red"}
EVE_OF_BLUE = {"x-user": "eve", "x-tenant": "blue"}


class Secret(Model, versioned=True):
    owner: str = ""
    tenant_id: str = column(default="", relation=None)
    scan: str | None = file(default=None, acl="signed")


class Sheet(Model, versioned=True, history_restore=True):
    """What everybody may read and write."""

    text: str = ""
    scan: str | None = file(default=None, acl="signed", auto_delete=False)
    pages: list[str] = file(default_factory=list, acl="signed")


def by_role(server: Server) -> None:
    server.pipeline.auth.register(auth.require_role("boss"), models=[Secret])


def by_owner(server: Server) -> None:
    rule = db.force_filter("owner", lambda ctx: ctx.auth.user_id if ctx.auth else None)
    server.pipeline.db.register(rule, models=[Secret])


def by_tenant(server: Server) -> None:
    server.pipeline.db.register(db.tenancy(), models=[Secret])


def by_policy(server: Server) -> None:
    policy = auth.enforce(lambda ctx, record: ctx.auth is not None and record.owner == ctx.auth.user_id)
    server.pipeline.db.register(policy, models=[Secret])


def by_redaction(server: Server) -> None:
    rule = response.redact_field("scan", lambda ctx: not ctx.has_role("boss"))
    server.pipeline.response.register(rule, models=[Secret])


def by_exemption(server: Server) -> None:
    """Everybody may use the routes of files and sheets without a credential; secrets need a key."""
    server.pipeline.auth.registrations.clear()
    files = ["upload_file", "read_file", "delete_file"]
    server.pipeline.auth.register(auth.allow_anonymous(), models=[Sheet])
    server.pipeline.auth.register(auth.allow_anonymous(), operations=files)
    ada = AuthInfo(user_id="ada", tenant_id="red", roles=["boss"])
    server.pipeline.auth.register(auth.api_keys(keys={"ada's": ada}))


def by_own_code(server: Server) -> None:
    @server.pipeline.auth.middleware(models=[Secret])
    async def of_its_owner(ctx: Context, next: Next) -> None:
        if ctx.operation != "create":
            record = await server.db(Secret).read(ctx.resource_id)
            if ctx.auth is None or record.owner != ctx.auth.user_id:
                ctx.abort(403, "NOT_YOURS", "this is another's")
        await next()


@dataclass
class Rule:
    declare: Callable[[Server], None]
    eve: dict[str, str] = field(default_factory=lambda: EVE)


RULES = {
    "role": Rule(by_role),
    "owner": Rule(by_owner),
    "tenant": Rule(by_tenant, EVE_OF_BLUE),
    "policy": Rule(by_policy),
    "redaction": Rule(by_redaction),
    "exemption": Rule(by_exemption, {}),
    "own code": Rule(by_own_code),
}


class World:
    """A secret of ada's with a file, which eve tries to get at."""

    def __init__(self, server: Server, browser: Browser, clock: FakeClock, eve: dict[str, str]) -> None:
        self.server = server
        self.browser = browser
        self.http = browser.http
        self.clock = clock
        self.eve = eve
        self.identity = AuthInfo(user_id=eve.get("x-user", ""), tenant_id=eve.get("x-tenant", ""))

    async def hide(self, minted: str) -> None:
        """Give ada's secret a file that ada uploaded, or nobody; `url` is what ada was given for it."""
        body = {"owner": "ada", "tenant_id": "red"}
        if minted == "by ada":
            secret = data_of(
                await self.http.post("/api/secrets", data=body, files={"scan": PART}, headers=ADA), 201
            )
            self.id, self.url = secret["id"], secret["scan"]
        else:
            stored = await self.server.files.store(CONTENT, filename=NAME)
            self.id = (await self.server.db(Secret).create(**body, scan=stored.key)).id
            self.url = data_of(await self.http.get(f"/api/secrets/{self.id}", headers=ADA))["scan"]
        self.key = (await self.server.db(Secret).read(self.id)).scan or ""

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {**self.eve, **options.pop("headers", {})}
        return await self.http.request(method, path, headers=headers, **options)


Answers = AsyncIterator[tuple[str, httpx.Response | Any]]


async def by_attachment(world: World) -> Answers:
    for method in ("GET", "HEAD"):
        yield method, await world.ask(method, f"/api/secrets/{world.id}/scan")


async def by_key(world: World) -> Answers:
    for method in ("GET", "HEAD", "DELETE"):
        yield method, await world.ask(method, f"/api/files/{world.key}")
    yield "range", await world.ask("GET", f"/api/files/{world.key}", headers={"range": "bytes=0-9"})
    assert await world.server.files.find(world.key)


async def by_signed_url(world: World) -> Answers:
    bare = world.url.partition("?")[0]
    yield "stripped", await world.ask("GET", bare)
    assert (await world.ask("GET", world.url)).content == CONTENT  # ada may hand it on, until it expires
    world.clock.advance(world.server.config.signed_url_ttl * 2)
    yield "expired", await world.ask("GET", world.url)
    yield "expired and stripped", await world.ask("GET", bare)


async def by_own_record(world: World) -> Answers:
    sheet = data_of(await world.ask("POST", "/api/sheets", json={"text": "mine"}), 201)
    for body in ({"scan": world.key}, {"pages": [world.key]}, {"scan": world.url}):
        yield f"POST {body}", await world.ask("POST", "/api/sheets", json=body)
        yield f"PATCH {body}", await world.ask("PATCH", f"/api/sheets/{sheet['id']}", json=body)
    own = {"owner": "eve", "tenant_id": world.eve.get("x-tenant", ""), "scan": world.key}
    yield "POST of the same model", await world.ask("POST", "/api/secrets", json=own)
    mine = await world.server.db(Secret).create(owner="eve", tenant_id=own["tenant_id"])
    body = {"scan": world.key}
    yield "PATCH of the same model", await world.ask("PATCH", f"/api/secrets/{mine.id}", json=body)


async def by_form(world: World) -> Answers:
    sheet = data_of(await world.ask("POST", "/api/sheets", json={"text": "mine"}), 201)
    part = (None, world.key, "text/plain")
    for name in ("scan", "pages"):
        yield f"POST {name}", await world.ask("POST", "/api/sheets", files={name: part})
        path = f"/api/sheets/{sheet['id']}"
        yield f"PATCH {name}", await world.ask("PATCH", path, files={name: part, "text": (None, "x")})


async def by_import(world: World) -> Answers:
    """An import fills no file field, whatever its columns are called."""
    if not world.eve:
        return
    browser = world.browser
    await browser.get("/sheets/import")
    content = f"text,scan,pages\r\nimported,{world.key},{world.key}\r\n".encode()
    place = await browser.send("/sheets/import", {"step": "import"}, files={"file": ("a.csv", content)})
    await browser.get(place)
    for sheet in await world.server.db(Sheet).list({"text": "imported"}):
        assert (sheet.scan, sheet.pages) == (None, [])
        yield "import", await world.ask("GET", f"/api/sheets/{sheet.id}")


async def by_history(world: World) -> Answers:
    """The versions of the secret; and a sheet that named the file before the secret did."""
    for path in (f"/api/secrets/{world.id}/history", f"/api/secrets/{world.id}/history/1"):
        yield path, await world.ask("GET", path)
    key = (await world.server.files.store(CONTENT, filename=NAME)).key
    sheet = await world.server.db(Sheet).create(scan=key)
    await world.server.db(Sheet).update(sheet.id, scan=None)
    await world.server.db(Secret).update(world.id, scan=key)
    yield "restore", await world.ask("POST", f"/api/sheets/{sheet.id}/history/1/restore")
    yield "key of a version", await world.ask("GET", f"/api/files/{key}")
    assert (await world.server.db(Sheet).read(sheet.id)).scan is None
    await world.server.db(Secret).update(world.id, scan=world.key)


async def by_panel(world: World) -> Answers:
    if not world.eve:  # who signs in to the panel is known, so no exemption is meant
        return
    browser = world.browser
    yield "file", await browser.http.get(f"/admin/secrets/{world.id}/file/scan")
    yield "page", await browser.http.get(f"/admin/secrets/{world.id}")
    await browser.get("/sheets/new")
    controls = {"f.text": "mine", "files.pages.0.key": world.key, "files.pages.0.place": "1"}
    yield "list", await browser.post("/sheets", controls)


async def by_code(world: World) -> Answers:
    identity = world.identity if world.eve else None
    call = world.server.call
    yield "GET", await call("GET", f"/api/files/{world.key}", auth=identity)
    yield "attachment", await call("GET", f"/api/secrets/{world.id}/scan", auth=identity)
    yield "POST", await call("POST", "/api/sheets", json={"scan": world.key}, auth=identity)


WAYS = (
    by_attachment,
    by_key,
    by_own_record,
    by_form,
    by_import,
    by_history,
    by_panel,
    by_code,
    by_signed_url,
)


@asynccontextmanager
async def a_world(rule: Rule, database: str) -> AsyncIterator[World]:
    clock = FakeClock()
    server = a_server("memory:", Secret, Sheet)
    server.admin(role="clerk").add(ModelAdmin(Secret), ModelAdmin(Sheet, can_import=True))
    rule.declare(server)
    async with visiting(server, database, signed_in=False, clock=clock) as browser:
        tenant = rule.eve.get("x-tenant")
        await add_superuser(server, roles=("clerk",), tenant_id=tenant)
        assert (await browser.sign_in()).status_code == 303
        yield World(server, browser, clock, rule.eve)


def texts_of(answer: Any) -> Iterator[bytes]:
    yield from (str(item).encode() for item in (answer.headers or {}).items())
    yield answer.content if isinstance(answer, httpx.Response) else answer.encode(lambda value: b"")


@pytest.mark.parametrize("minted", ["by ada", "by nobody"])
@pytest.mark.parametrize("rule", RULES)
async def test_no_way_leads_to_a_file_whose_record_is_closed(
    database_url: str, rule: str, minted: str
) -> None:
    async with a_world(RULES[rule], database_url) as world:
        await world.hide(minted)
        for path in (f"/api/secrets/{world.id}/scan", f"/api/files/{world.key}"):
            assert (await world.http.get(path, headers=ADA)).content == CONTENT
        for way in WAYS:
            async for what, answer in way(world):
                told = b"\n".join(texts_of(answer))
                assert CONTENT[:64] not in told, (way.__name__, what)
                assert NAME.encode() not in told, (way.__name__, what, told)
        links = await world.server.files.desk.links(world.key)
        assert {(link.model, link.record_id) for link in links} == {("Secret", world.id)}


class Letter(Model, soft_delete=True):
    scan: str | None = file(default=None)
    draft: str | None = file(default=None, hidden=True)


class Chest(Model, headless=True):
    scan: str | None = file(default=None)


class Form(Model, operations=["create"]):
    scan: str | None = file(default=None)


class Wall(Model):
    poster: str | None = file(default=None, acl="public", auto_delete=False)
    plan: str | None = file(default=None, auto_delete=False)


class Print(Model):
    plate: str | None = file(default=None, upload="presigned")


UPLOAD = ("a.png", PNG, "image/png")
A, COLLEAGUE, STRANGER = (
    {"x-user": "a", "x-tenant": "red"},
    {"x-user": "c", "x-tenant": "red"},
    {"x-user": "s", "x-tenant": "blue"},
)


@asynccontextmanager
async def an_office(database: str) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    server = a_server("memory:", Letter, Chest, Form, Wall, Sheet, Print)
    async with client(server, database=database) as http:
        yield server, http


async def upload(http: httpx.AsyncClient, headers: dict[str, str]) -> str:
    answer = await http.post("/api/files", files={"file": UPLOAD}, headers=headers)
    return str(data_of(answer, 201)["key"])


async def statuses(http: httpx.AsyncClient, key: str, *callers: dict[str, str]) -> list[int]:
    return [(await http.get(f"/api/files/{key}", headers=who)).status_code for who in callers]


async def test_a_file_that_no_record_names_is_its_uploaders(database_url: str) -> None:
    async with an_office(database_url) as (server, http):
        own, anybodys = await upload(http, {"x-user": "a"}), (await server.files.store(PNG)).key
        assert await statuses(http, own, {"x-user": "a"}, {"x-user": "c"}, {}) == [200, 404, 404]
        assert await statuses(http, anybodys, A, STRANGER, {}) == [200, 200, 200]
        in_tenant = await upload(http, A)
        nameless = {"x-tenant": "red"}
        others: list[dict[str, str]] = [COLLEAGUE, STRANGER, nameless, {"x-user": "a"}, {}]
        assert await statuses(http, in_tenant, A, *others) == [200, 404, 404, 404, 404, 404]
        for other in others:
            answer = await http.post("/api/sheets", json={"scan": in_tenant}, headers=other)
            error_of(answer, 403, "FILE_FORBIDDEN")
            error_of(await http.delete(f"/api/files/{in_tenant}", headers=other), 404, "FILE_NOT_FOUND")
        of_tenant = await upload(http, nameless)
        assert await statuses(http, of_tenant, nameless, COLLEAGUE, STRANGER, {}) == [200, 200, 404, 404]
        assert (await http.delete(f"/api/files/{in_tenant}", headers=A)).status_code == 204


async def test_a_presigned_upload_is_its_callers_before_and_after_it_came(database_url: str) -> None:
    async with an_office(database_url) as (_, http):
        wish = {"filename": "a.png", "content_type": "image/png"}
        target = data_of(await http.post("/api/prints/plate/upload-url", json=wish, headers=A))
        key = target["key"]
        others: list[dict[str, str]] = [COLLEAGUE, STRANGER, {}]

        async def refuse_others() -> None:
            assert await statuses(http, key, *others) == [404, 404, 404]
            for other in others:
                answer = await http.post("/api/prints", json={"plate": key}, headers=other)
                error_of(answer, 403, "FILE_FORBIDDEN")
                error_of(await http.delete(f"/api/files/{key}", headers=other), 404, "FILE_NOT_FOUND")
                put = await http.put(f"/api/files/{key}", content=PNG, headers=other)
                error_of(put, 404, "FILE_NOT_FOUND")

        await refuse_others()
        sent = await http.request(target["method"], target["url"], content=PNG, headers=target["headers"])
        assert sent.is_success
        await refuse_others()
        assert await statuses(http, key, A) == [200]
        assert (await http.post("/api/prints", json={"plate": key}, headers=A)).status_code == 201


async def test_what_code_stores_is_its_callers_in_requests_and_runs(database_url: str) -> None:
    server = a_server("memory:", Sheet)

    @server.work.handler("sheets.draw")
    async def draw(run: Run) -> dict[str, str]:
        return {"key": (await server.files.store(PNG, filename="a.png")).key}

    @server.action("POST", "/drawings")
    async def order(ctx: Context) -> dict[str, str]:
        stored = await server.files.store(PNG, filename="a.png")
        return {"key": stored.key, "run": str((await server.work.submit("sheets.draw")).id)}

    async with client(server, database=database_url) as http:
        made = data_of(await http.post("/api/drawings", headers=A))
        await server.work.worker().drain()
        result: Any = (await server.work.get(made["run"])).result
        for key in (made["key"], result["key"]):
            assert await statuses(http, key, A, COLLEAGUE, STRANGER, {}) == [200, 404, 404, 404]


@pytest.mark.parametrize("reads", ["key", "owner", "record"])
async def test_a_linked_file_out_of_reach_is_deleted_like_one_that_there_is_none_of(
    database_url: str, reads: str
) -> None:
    server = a_server("memory:", Secret, files_read=reads)
    server.pipeline.auth.register(auth.require_role("boss"), models=[Secret])
    async with client(server, database=database_url) as http:
        key = await upload(http, EVE)  # who may not read the record that names it
        path = f"/api/files/{key}"
        await server.db(Secret).create(scan=key)
        of_none = error_of(await http.delete("/api/files/uploads/none", headers=EVE), 404, "FILE_NOT_FOUND")
        for other in (EVE, {**EVE, "x-user": "bob"}, EVE_OF_BLUE, {}):
            assert error_of(await http.delete(path, headers=other), 404, "FILE_NOT_FOUND") == of_none
            assert await statuses(http, key, other) == [404]
        assert (await http.delete(path, headers=ADA)).status_code == (409 if reads == "key" else 404)
        error_of(await http.delete(path, headers={**EVE, "x-role": "admin"}), 409, "FILE_IN_USE")
        assert await server.files.find(key)


async def test_files_read_owner_means_the_person_and_not_the_tenant(database_url: str) -> None:
    server = a_server("memory:", Sheet, files_read="owner")
    async with client(server, database=database_url) as http:
        key = await upload(http, A)
        await server.db(Sheet).create(scan=key)
        assert await statuses(http, key, A, COLLEAGUE, STRANGER, {}) == [200, 404, 404, 404]


async def test_a_file_waits_with_its_deleted_record(database_url: str) -> None:
    async with an_office(database_url) as (server, http):
        key = await upload(http, A)
        letter = await server.db(Letter).create(scan=key)
        assert await statuses(http, key, A, COLLEAGUE) == [200, 200]
        await http.delete(f"/api/letters/{letter.id}", headers=A)
        assert await statuses(http, key, A, COLLEAGUE) == [404, 404]
        error_of(await http.post("/api/sheets", json={"scan": key}, headers=A), 403, "FILE_FORBIDDEN")


async def test_what_no_client_may_read_opens_no_file(database_url: str) -> None:
    async with an_office(database_url) as (server, http):
        for model, name in ((Letter, "draft"), (Chest, "scan"), (Form, "scan")):
            key = await upload(http, A)
            await server.db(model).create(**{name: key})
            assert await statuses(http, key, A, COLLEAGUE) == [404, 404], model
            error_of(await http.post("/api/sheets", json={"scan": key}, headers=A), 403, "FILE_FORBIDDEN")


async def test_a_kept_file_is_not_everybodys_again(database_url: str) -> None:
    async with an_office(database_url) as (server, http):
        own, nobodys = await upload(http, A), (await server.files.store(PNG)).key
        for key in (own, nobodys):
            wall = await server.db(Wall).create(plan=key)
            await server.db(Wall).update(wall.id, plan=None)
            assert await statuses(http, key, COLLEAGUE, STRANGER, {}) == [404, 404, 404]
            for caller in (COLLEAGUE, {}):
                answer = await http.post("/api/walls", json={"plan": key}, headers=caller)
                error_of(answer, 403, "FILE_FORBIDDEN")
        assert await statuses(http, own, A) == [200]
        assert (await http.post("/api/walls", json={"plan": own}, headers=A)).status_code == 201


async def test_a_public_file_that_a_private_field_named_stays_closed(database_url: str) -> None:
    async with an_office(database_url) as (server, http):
        made = data_of(await http.post("/api/walls", files={"poster": UPLOAD}, headers=A), 201)
        key = (await server.db(Wall).read(made["id"])).poster
        assert key is not None
        assert await statuses(http, key, {}) == [200]
        await server.db(Wall).update(made["id"], poster=None)
        assert await statuses(http, key, {}) == [200]  # a public one that is kept is public
        await server.db(Wall).update(made["id"], plan=key)
        await server.db(Wall).update(made["id"], plan=None)
        assert await statuses(http, key, {}, COLLEAGUE, A) == [404, 404, 200]


async def test_a_version_is_restored_by_whoever_may_change_the_record(database_url: str) -> None:
    async with an_office(database_url) as (_, http):
        key = await upload(http, {"x-user": "a"})
        sheet = data_of(await http.post("/api/sheets", json={"scan": key}, headers={"x-user": "a"}), 201)
        path = f"/api/sheets/{sheet['id']}"
        other = {"x-user": "c"}
        data_of(await http.patch(path, json={"scan": None}, headers=other))
        error_of(await http.patch(path, json={"scan": key}, headers=other), 403, "FILE_FORBIDDEN")
        data_of(await http.post(f"{path}/history/1/restore", headers=other))
        assert (await http.get(f"{path}/scan", headers=other)).content == PNG
