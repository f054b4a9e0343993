import asyncio

from maniflex import AuthInfo, Model, Server, field
from maniflex.admin import ModelAdmin
from maniflex.testing import client


class Part(Model, export=True):
    code: str = field(unique=True, filterable=True, min_length=2)
    name: str = ""
    stock: int = field(default=0, min=0)


async def login(ctx: object, username: str, password: str) -> AuthInfo | None:
    return AuthInfo(user_id=username, roles=["superuser"]) if password == "open sesame" else None


server = Server()
server.register(Part)
server.admin(auth=login).add(ModelAdmin(Part, can_import=True))

FILE = b"""Code;Name;On stock
a1;Anvil;3
x;Bolt;1
c3;Cog;many
"""


async def main() -> None:
    async with client(server) as http:
        await http.get("/admin/-/login")
        form = {"username": "ada", "password": "open sesame", "_csrf": http.cookies["_csrf"]}
        await http.post("/admin/-/login", data=form)
        page = (await http.get("/admin/parts/import")).text
        token = page.partition('data-csrf="')[2][:64]

        controls = {"_csrf": token, "step": "check", "map.On stock": "stock", "upsert": "code"}
        sent = await http.post("/admin/parts/import", data=controls, files={"file": ("parts.csv", FILE)})
        place = sent.headers["location"]
        checked = (await http.get(place)).text
        assert "Checked. Nothing has been written yet." in checked
        assert "must have at least 2 characters" in checked
        assert await server.db(Part).count() == 0

        await http.post(f"{place}/start", data={"_csrf": token})
        refused = (await http.get(f"{place}/refusals")).text.splitlines()
        assert refused[0] == "Code;Name;On stock;_error"
        assert [part.code for part in await server.db(Part).list()] == ["a1"]


if __name__ == "__main__":
    asyncio.run(main())
