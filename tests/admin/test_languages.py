"""Texts in several languages in the panel: lists show one of them, forms have them all."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from maniflex import LocaleOptions, LocaleString, Model, Server, field
from tests.admin.test_forms import conflict_controls, controls_of
from tests.kit.panel import Browser, text_of, visiting


class Department(Model, versioned=True):
    name: LocaleString = field(filterable=True, sortable=True, max_length=20)
    hint: LocaleString | None = field(default=None, locale="resolve")
    code: LocaleString | None = field(default=None, locale="dynamic")


class Ticket(Model):
    title: LocaleString
    state: LocaleString = field(default_factory=lambda: LocaleString(en="open", de="offen"), locale="resolve")


async def test_lists_forms_and_records_have_the_text_that_is_shown(database_url: str) -> None:
    server = Server(locale=LocaleOptions(supported=("en", "de")))
    server.register(Department)
    server.admin()
    async with visiting(server, database_url) as browser:
        texts = {"en": "Finance", "de": "Finanzen"}
        record = await server.db(Department).create(name=texts, hint={"en": "h"}, code={"en": "c"})
        for number in range(60):
            await server.db(Department).create(name={"en": f"Unit {number:02}", "de": "x"})
        first = await browser.get("/departments?sort=name")
        names = [f"Unit {number:02}" for number in range(60)]
        on_first = [name for name in names if name in text_of(first)]
        assert on_first == names[: len(on_first)]
        assert 0 < len(on_first) < 60
        following = html.unescape(next(part for part in first.split('"') if "after=" in part))
        second = await browser.get(following[following.index("/departments") :])
        assert next(name for name in names if name in text_of(second)) == names[len(on_first)]
        assert "Finance" in text_of(await browser.get(f"/departments/{record.id}"))

        controls = controls_of(await browser.get(f"/departments/{record.id}/edit"))
        assert (controls["f.name.en"], controls["f.name.de"]) == ("Finance", "Finanzen")
        assert (controls["f.hint.en"], controls["f.hint.de"], controls["f.code.en"]) == ("h", "", "c")
        await browser.send(f"/departments/{record.id}", controls | {"f.name.en": "Money", "f.hint.en": ""})
        changed = await server.db(Department).read(record.id)
        assert changed.name == {"en": "Money", "de": "Finanzen"}
        assert (changed.hint, changed.code) == ({}, {"en": "c"})


@asynccontextmanager
async def in_the_panel(
    database_url: str, **options: Any
) -> AsyncIterator[tuple[Browser, Callable[..., Any], str]]:
    """A browser, what reads a record, and the path of a new one."""
    server = Server(locale=LocaleOptions(**{"supported": ("en", "de", "ar"), "rtl": ("ar",), **options}))
    server.register(Department, Ticket)
    server.admin()
    async with visiting(server, database_url) as browser:
        record = await server.db(Department).create(name={"en": "Finance", "sw": "Fedha"}, hint={"en": "h"})

        async def stored() -> Department:
            return await server.db(Department).read(record.id)

        yield browser, stored, f"/departments/{record.id}"


async def test_a_form_has_a_text_for_each_language_and_one_for_another(database_url: str) -> None:
    async with in_the_panel(database_url) as (browser, stored, path):
        page = await browser.get(f"{path}/edit")
        controls = controls_of(page)
        names = [name for name in controls if name.startswith("f.name.")]
        assert names == ["f.name.en", "f.name.de", "f.name.ar", "f.name.sw"]
        assert re.search(r'name="f\.name\.ar"[^>]* lang="ar" dir="rtl"', page)
        added = {"f.name.de": "Finanzen", "add.name.code": "PT_br", "add.name.text": "Finanças"}
        await browser.send(path, controls | added)
        assert (await stored()).name == {
            "en": "Finance",
            "sw": "Fedha",
            "de": "Finanzen",
            "pt-BR": "Finanças",
        }
        controls = controls_of(await browser.get(f"{path}/edit"))
        await browser.send(path, controls | {"f.name.sw": ""})
        assert list((await stored()).name) == ["en", "de", "pt-BR"]
        assert (await browser.send(path, controls_of(await browser.get(f"{path}/edit")))) == path


async def test_what_is_wrong_with_a_translation_stands_beside_it(database_url: str) -> None:
    async with in_the_panel(database_url) as (browser, stored, path):
        controls = controls_of(await browser.get(f"{path}/edit"))
        for typed, words in (
            ({"f.name.de": "x" * 21}, "must have at most 20 characters"),
            ({"f.name.en": "", "f.name.sw": ""}, "needs a text in one language at least"),
            ({"add.name.code": "x!", "add.name.text": "y"}, "this is no code of a language"),
            ({"add.name.code": "EN", "add.name.text": "y"}, "there is a text in EN already"),
        ):
            answer = await browser.post(path, controls | typed)
            assert (answer.status_code, words in answer.text) == (422, True), (typed, answer.text[-3000:])
            sent_again = controls_of(answer.text)
            assert {name: sent_again[name] for name in typed} == typed
            assert re.search(
                r'id="field-name(\.de)?"[^>]*aria-invalid|name="f.name.de"[^>]*aria-invalid', answer.text
            )
        assert (await stored()).name == {"en": "Finance", "sw": "Fedha"}


async def test_a_strict_server_offers_no_other_language(sqlite_url: str) -> None:
    async with in_the_panel(sqlite_url, strict=True) as (browser, _, path):
        assert "add.name.code" not in controls_of(await browser.get(f"{path}/edit"))


async def test_two_people_who_change_two_translations_do_not_meet(database_url: str) -> None:
    async with in_the_panel(database_url) as (browser, stored, path):
        mine = controls_of(await browser.get(f"{path}/edit"))
        theirs = dict(mine)
        await browser.send(path, theirs | {"f.name.de": "Finanzen", "f.name.sw": ""})
        await browser.send(path, mine | {"f.name.ar": "مالية"})
        assert (await stored()).name == {"en": "Finance", "de": "Finanzen", "ar": "مالية"}


@pytest.mark.parametrize(("take", "kept"), [("yours", "mine"), ("theirs", "theirs")])
@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        ({"f.name.en": "theirs"}, {"f.name.en": "mine"}),
        ({"f.name.de": "theirs"}, {"f.name.de": "mine"}),
        (
            {"add.name.code": "fr", "add.name.text": "theirs"},
            {"add.name.code": "fr", "add.name.text": "mine"},
        ),
    ],
)
async def test_a_conflict_is_about_one_translation(
    database_url: str, take: str, kept: str, theirs: dict[str, str], mine: dict[str, str]
) -> None:
    code = next(iter(mine)).rpartition(".")[2].replace("code", "fr")
    async with in_the_panel(database_url) as (browser, stored, path):
        controls = controls_of(await browser.get(f"{path}/edit"))
        await browser.send(path, controls | theirs | {"f.hint.de": "others"})
        answer = await browser.post(path, controls | mine | {"f.name.sw": "Pesa"})
        assert answer.status_code == 409, answer.text
        assert f"Name ({code})" in text_of(answer.text)
        await browser.send(path, conflict_controls(answer.text) | {f"take.name.{code}": take})
        changed = await stored()
        assert (changed.name[code], changed.name["sw"]) == (kept, "Pesa")
        assert changed.hint == {"en": "h", "de": "others"}


async def test_a_new_record_has_the_texts_that_were_typed_and_those_of_the_default(
    database_url: str,
) -> None:
    server = Server(locale=LocaleOptions(supported=("en", "de")))
    server.register(Department, Ticket)
    server.admin()
    async with visiting(server, database_url) as browser:
        controls = controls_of(await browser.get("/tickets/new"))
        assert (controls["f.state.en"], controls["f.state.de"]) == ("open", "offen")
        answer = await browser.post("/tickets", controls)
        assert answer.status_code == 422
        assert "is required" in answer.text
        path = await browser.send("/tickets", controls | {"f.title.de": "Neu", "f.state.de": "neu"})
        record = await server.db(Ticket).read(path.rpartition("/")[2])
        assert (record.title, record.state) == ({"de": "Neu"}, {"en": "open", "de": "neu"})
        copy = await browser.send(
            path, controls_of(await browser.get(f"{path}/edit")) | {"_then": "copy", "f.title.en": "New"}
        )
        record = await server.db(Ticket).read(copy.rpartition("/")[2])
        assert (record.title, record.state) == ({"de": "Neu", "en": "New"}, {"en": "open", "de": "neu"})


async def test_a_version_brings_all_its_translations_back(database_url: str) -> None:
    async with in_the_panel(database_url) as (browser, stored, path):
        controls = controls_of(await browser.get(f"{path}/edit"))
        changes = {"f.name.en": "Money", "f.name.de": "Geld", "f.name.sw": "", "f.hint.en": "i"}
        await browser.send(path, controls | changes)
        old = controls_of(await browser.get(f"{path}/edit?version=1"))
        assert (old["f.name.en"], old["f.name.de"], old["f.name.sw"]) == ("Finance", "", "Fedha")
        await browser.get(f"{path}/history/1")
        await browser.send(f"{path}/history/1/restore")
        restored = await stored()
        assert (restored.name, restored.hint) == ({"en": "Finance", "sw": "Fedha"}, {"en": "h"})


async def test_a_person_reads_records_in_the_language_that_it_chose(database_url: str) -> None:
    async with in_the_panel(database_url) as (browser, stored, path):
        controls = controls_of(await browser.get(f"{path}/edit"))
        await browser.send(path, controls | {"f.name.de": "Finanzen"})
        account = await browser.get("/-/account")
        assert '<option value="de">' in account
        await browser.send("/-/account/preferences", {"theme": "", "zone": "UTC", "language": "de"})
        for page in ("/departments", path, f"{path}/edit", "/departments?sort=name"):
            assert "Finanzen" in text_of(await browser.get(page))
        assert "Finance" not in text_of(await browser.get("/departments"))
        found = text_of(await browser.get("/departments?f_name~contains=nanzen"))
        assert "Finanzen" in found
        await browser.send("/-/account/preferences", {"theme": "", "zone": "UTC", "language": "xx"})
        assert "Finance" in text_of(await browser.get("/departments"))
        assert (await stored()).name["de"] == "Finanzen"


async def test_lists_find_what_is_not_translated(database_url: str) -> None:
    async with in_the_panel(database_url) as (browser, _, path):
        page = await browser.get("/departments")
        assert 'name="f_name.de~is_null"' in page
        missing = text_of(await browser.get("/departments?f_name.de~is_null=1"))
        assert "Finance" in missing
        assert "Name (de)" in missing
        controls = controls_of(await browser.get(f"{path}/edit"))
        await browser.send(path, controls | {"f.name.de": "Finanzen"})
        assert "Finance" not in text_of(await browser.get("/departments?f_name.de~is_null=1"))
