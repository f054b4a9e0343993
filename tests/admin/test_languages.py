"""Texts in several languages in the panel: they are shown and changed in the usual language."""

from __future__ import annotations

import html

from maniflex import LocaleOptions, LocaleString, Model, Server, field
from tests.admin.test_forms import controls_of
from tests.kit.panel import text_of, visiting


class Department(Model, versioned=True):
    name: LocaleString = field(filterable=True, sortable=True, max_length=20)
    hint: LocaleString | None = field(default=None, locale="resolve")
    code: LocaleString | None = field(default=None, locale="dynamic")


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
        assert (controls["f.name"], controls["f.hint"]) == ("Finance", "h")
        await browser.send(f"/departments/{record.id}", controls | {"f.name": "Money"})
        changed = await server.db(Department).read(record.id)
        assert changed.name == {"en": "Money", "de": "Finanzen"}
        assert (changed.hint, changed.code) == ({"en": "h"}, {"en": "c"})
        path = await browser.send(
            "/departments", controls_of(await browser.get("/departments/new")) | {"f.name": "New"}
        )
        assert (await server.db(Department).read(path.rpartition("/")[2])).name == {"en": "New"}
