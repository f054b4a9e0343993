"""Pages of headless models, values on request, Markdown: what a `ModelAdmin` adds, and no more."""

from __future__ import annotations

import pytest

from maniflex import AuthInfo, Context, DeclarationError, Model, Operation, Server, field, file
from maniflex.admin import ModelAdmin
from maniflex.admin.tables import AdminEvent
from maniflex.admin.widgets import render_markdown
from maniflex.encryption import MemoryKeyProvider
from maniflex.middleware import auth, db, response
from tests.kit.attacks import ATTACKS
from tests.kit.panel import add_superuser, text_of, visiting


class Ledger(Model, headless=True):
    tenant_id: str = field(default="", relation=None)
    title: str = field(filterable=True, sortable=True, min_length=2)
    body: str = ""


def make_server() -> Server:
    server = Server()
    server.register(Ledger)
    server.pipeline.auth.register(auth.api_keys(keys={"k" * 20: AuthInfo(user_id="k", tenant_id="t1")}))
    server.pipeline.auth.register(auth.require_role("boss"), models=[Ledger], operations=[Operation.DELETE])
    server.pipeline.db.register(db.tenancy())
    server.admin().add(ModelAdmin(Ledger, private=True, widgets={"body": "markdown"}))
    return server


async def test_a_private_model_has_pages_and_no_routes(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url, signed_in=False) as browser:
        await add_superuser(server, "ada@one.example", tenant_id="t1")
        await browser.sign_in("ada@one.example")
        other = await server.db(Ledger).create(tenant_id="t2", title="foreign")
        controls = {"f.title": "Mine", "f.body": "# Big\\n\\n**bold** <b>", "_seen": "{}", "_key": "k"}
        path = await browser.send("/ledgers", controls)
        page = await browser.get(path)
        assert "&lt;b&gt;" in page
        assert "Mine" in text_of(await browser.get("/ledgers?sort=title:asc"))
        assert "foreign" not in await browser.get("/ledgers")
        await browser.get(f"/ledgers/{other.id}", 404)
        await browser.send(path, {"f.title": "Changed", "_seen": '{"title": "Mine"}'})
        wrong = await browser.post(path, {"f.title": "x", "_seen": '{"title": "Changed"}'})
        assert wrong.status_code == 422
        assert (await browser.post(f"{path}/delete")).status_code == 403
        record_id = path.rpartition("/")[2]
        headers = {"x-api-key": "k" * 20}
        for method, address in (("GET", "/api/ledgers"), ("PATCH", f"/api/ledgers/{record_id}")):
            answer = await browser.http.request(method, address, headers=headers, json={"title": "no"})
            assert answer.status_code == 404
        answer = await browser.http.get("/api/openapi.json")
        assert "ledger" not in answer.text.lower()
        assert (await server.db(Ledger).read(record_id)).title == "Changed"


class Contract(Model, headless=True, versioned=True, export=True):
    tenant_id: str = field(default="", relation=None)
    title: str = field(filterable=True, sortable=True, min_length=2)
    secret: str | None = field(default=None, writeonly=True)
    scan: str | None = file(default=None)


class Memo(Model, headless=True, versioned_diff_only=True):
    title: str = field(filterable=True, sortable=True, min_length=2)


async def test_a_private_model_has_its_past_its_files_and_its_export_by_their_rules(
    database_url: str,
) -> None:
    server = Server(storage="memory:")
    server.register(Contract, Memo)
    for operation in (Operation.EXPORT, Operation.READ_HISTORY, Operation.READ_ATTACHMENT):
        role = auth.require_role(f"may-{operation}")
        server.pipeline.auth.register(role, models=[Contract], operations=[operation])
    server.pipeline.db.register(db.tenancy(), models=[Contract])
    admin = server.admin()
    admin.add(ModelAdmin(Contract, private=True))
    admin.add(ModelAdmin(Memo, private=True))
    all_roles = ("superuser", "may-export", "may-read_history", "may-read_attachment")
    async with visiting(server, database_url, signed_in=False) as browser:
        await add_superuser(server, "eve@one.example", tenant_id="t1")
        await add_superuser(server, "ada@one.example", tenant_id="t1", roles=all_roles)
        await browser.sign_in("ada@one.example")
        other = await server.db(Contract).create(tenant_id="t2", title="foreign", secret="marker-1")
        await server.db(Contract).update(other.id, title="foreign 2")
        controls = {"f.title": "First", "f.secret": "marker-2", "_seen": "{}", "_key": "k"}
        files = {"f.scan": ("a.txt", b"content", "text/plain")}
        path = await browser.send("/contracts", controls, files=files)
        await browser.send(path, {"f.title": "Second", "_seen": '{"title": "First"}'})
        history = await browser.get(f"{path}/history")
        compared = await browser.get(f"{path}/history?a=1&b=2")
        assert "First" in history
        assert "Second" in compared
        form = await browser.get(f"{path}/edit?version=1")
        assert 'value="First"' in form
        await browser.send(f"{path}/history/1/restore")
        assert (await server.db(Contract).read(path.rpartition("/")[2])).title == "First"
        exported = await browser.get("/contracts/export?format=csv")
        assert "First" in exported
        assert (await browser.http.get(f"/admin{path}/file/scan")).content == b"content"
        for page in (history, compared, form, exported, await browser.get("/contracts")):
            assert "foreign" not in page
            assert "marker-" not in page
        for page in ("history", "history/1", "history?a=1&b=2", "file/scan", "edit?version=1"):
            await browser.get(f"/contracts/{other.id}/{page}", 404)
        for address in ("export", f"{path.rpartition('/')[2]}/history", f"{path.rpartition('/')[2]}/scan"):
            answer = await browser.http.get(f"/api/contracts/{address}")
            assert answer.status_code == 404
        # a model that keeps changes only: its states are rebuilt
        memo = await server.db(Memo).create(title="One")
        await server.db(Memo).update(memo.id, title="Two")
        page = text_of(await browser.get(f"/memos/{memo.id}/history?a=1&b=2"))
        assert "One" in page
        assert "Two" in page
        await browser.get("/memos/export", 404)  # it has no export=True
        await browser.get("/")
        await browser.post("/-/logout")
        await browser.sign_in("eve@one.example")
        await browser.get(path)
        await browser.get(f"{path}/history", 403)
        await browser.get("/contracts/export?format=csv", 403)
        await browser.get(f"{path}/file/scan", 403)
        assert "format=csv" not in await browser.get("/contracts")


class Patient(Model):
    name: str
    ssn: str | None = field(default=None, encrypted=True)


def test_reveal_is_for_encrypted_fields_and_private_for_headless_models() -> None:
    for options, text in (
        ({"reveal": ("name",)}, "is no encrypted field"),
        ({"private": True}, "is for headless models"),
    ):
        server = Server()
        server.register(Patient)
        server.admin().add(ModelAdmin(Patient, **options))
        with pytest.raises(DeclarationError, match=text):
            server.seal()


async def test_a_value_is_revealed_by_a_form_and_noted(database_url: str) -> None:
    server = Server(key_provider=MemoryKeyProvider())
    server.register(Patient)
    server.admin().add(ModelAdmin(Patient, reveal=("ssn",)))

    def is_no_keeper(ctx: Context) -> bool:
        return not ctx.has_role("keeper")

    server.pipeline.response.register(response.redact_field("ssn", is_no_keeper), models=[Patient])
    async with visiting(server, database_url, signed_in=False) as browser:
        await add_superuser(server, "bob@example.org")
        await add_superuser(server, "eve@example.org", roles=("superuser", "keeper"))
        patient = await server.db(Patient).create(name="Ada", ssn="123-45-6789")
        for email, status in (("bob@example.org", 403), ("eve@example.org", 200)):
            await browser.sign_in(email)
            for page in ("", "/edit", "/delete"):
                assert "123-45-6789" not in await browser.get(f"/patients/{patient.id}{page}")
            assert "123-45-6789" not in await browser.get("/patients")
            answer = await browser.post(f"/patients/{patient.id}/reveal/ssn")
            assert (answer.status_code, "123-45-6789" in answer.text) == (status, status == 200)
            assert (await browser.post(f"/patients/{patient.id}/reveal/name")).status_code == 404
            assert (await browser.http.get(f"/admin/patients/{patient.id}/reveal/ssn")).status_code in (
                404,
                405,
            )
            await browser.get("/")
            await browser.post("/-/logout")
        [event] = await server.db(AdminEvent).list({"action": "reveal"})
        assert (event.actor_name, event.record_id, event.fields) == ("eve@example.org", patient.id, ["ssn"])


async def test_a_form_writes_an_encrypted_field_and_never_shows_it(database_url: str) -> None:
    server = Server(key_provider=MemoryKeyProvider())
    server.register(Patient)
    server.admin()
    async with visiting(server, database_url) as browser:
        path = await browser.send("/patients", {"f.name": "Ada", "f.ssn": "123", "_seen": "{}", "_key": "k"})
        page = await browser.get(f"{path}/edit")
        assert 'name="f.ssn"' in page
        assert "123" not in page
        [ada] = await server.db(Patient).list()
        assert ada.ssn == "123"
        await browser.send(path, {"f.name": "Bea", "f.ssn": "", "_seen": '{"name": "Ada"}'})
        [bea] = await server.db(Patient).list()
        assert (bea.name, bea.ssn) == ("Bea", "123")


def test_markdown_is_a_fixed_part_without_markup_of_its_own() -> None:
    text = "# Title\n\nA **bold** *word* and `code`\n\n- one\n- [two](https://example.org/?a=1&b=2)\n\n"
    text += "> said\n\n```\n<x>\n```"
    html = str(render_markdown(text))
    assert "<h3>Title</h3>" in html
    assert "<strong>bold</strong> <em>word</em> and <code>code</code>" in html
    assert '<a href="https://example.org/?a=1&amp;b=2" rel="noreferrer noopener">two</a>' in html
    assert "<blockquote>said</blockquote>" in html
    assert "<pre><code>&lt;x&gt;</code></pre>" in html
    for attack in ATTACKS:
        for wrapped in (
            attack,
            f"**{attack}**",
            f"[x]({attack})",
            f"[{attack}](https://a.example)",
            f"- {attack}",
        ):
            html = str(render_markdown(wrapped))
            for tag in (
                "<script",
                "<img",
                "<svg",
                "<iframe",
                "<form",
                "<base",
                "<meta",
                'href="javascript',
                'href="data',
            ):
                assert tag not in html.lower(), wrapped
