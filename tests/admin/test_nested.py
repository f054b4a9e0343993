"""Forms of parts: fields whose type is a dataclass or a pydantic model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from maniflex import Model, Server
from tests.admin.test_forms import controls_of, edit
from tests.kit.panel import text_of, visiting


@dataclass
class Address:
    city: str
    zip: int | None = None
    kind: Literal["home", "work"] = "home"
    verified: bool = False


class Settings(BaseModel):
    name: str
    ratio: float = 1.5
    tags: list[str] = []


class Firm(Model):
    title: str
    address: Address
    settings: Settings | None = None


async def test_parts_have_controls_and_untouched_ones_stay(database_url: str) -> None:
    server = Server()
    server.register(Firm)
    server.admin()

    async def stored(id: str) -> dict[str, Any]:
        answer = (await server.call("GET", f"/api/firms/{id}")).data
        return {"address": answer["address"], "settings": answer["settings"]}

    async with visiting(server, database_url) as browser:
        controls = controls_of(await browser.get("/firms/new"))
        assert {"f.address.city", "f.address.zip", "f.address.kind"} <= set(controls)
        path = await browser.send(
            "/firms", controls | {"f.title": "Firm", "f.address.city": "Bonn", "f.address.zip": "53111"}
        )
        firm = path.rpartition("/")[2]
        address = {"city": "Bonn", "zip": 53111, "kind": "home", "verified": False}
        assert await stored(firm) == {"address": address, "settings": None}

        assert (await edit(browser, path)).status_code == 303
        assert "Nothing was changed" in text_of(await browser.get(path))
        await edit(browser, path, f__address__kind="work", f__address__verified="true", f__address__zip="")
        assert (await stored(firm))["address"] == {
            "city": "Bonn",
            "zip": None,
            "kind": "work",
            "verified": True,
        }

        changes = {"f__settings__name": "x", "f__settings__tags": '["a"]', "null__settings": None}
        assert (await edit(browser, path, **changes)).status_code == 303
        assert (await stored(firm))["settings"] == {"name": "x", "ratio": 1.5, "tags": ["a"]}
        assert (await edit(browser, path, null__settings="1")).status_code == 303
        assert (await stored(firm))["settings"] is None

        wrong = await edit(browser, path, f__address__zip="many", f__title="Other")
        assert wrong.status_code == 422
        assert 'href="#field-address.zip"' in wrong.text
        assert controls_of(wrong.text)["f.address.zip"] == "many"
        broken = await edit(browser, path, f__settings__tags="[", f__settings__name="y", null__settings=None)
        assert broken.status_code == 422
        assert (await server.db(Firm).read(firm)).title == "Firm"
