import asyncio

from maniflex import LocaleOptions, LocaleString, Model, Server, field
from maniflex.testing import client


class Department(Model):
    name: LocaleString = field(filterable=True, sortable=True)


server = Server(locale=LocaleOptions(supported=("en", "de", "ar"), rtl=("ar",), from_header=True))
server.register(Department)


async def main() -> None:
    async with client(server) as http:
        created = await http.post("/api/departments", json={"name": {"en": "Finance", "ar": "مالية"}})
        path = f"/api/departments/{created.json()['data']['id']}"
        assert created.json()["data"]["name"] == "Finance"

        arabic = (await http.get(path, params={"locale": "ar"})).json()
        assert arabic["data"]["name"] == "مالية"
        assert arabic["data"]["name_i18n"] == {"en": "Finance", "ar": "مالية"}
        assert arabic["meta"] == {"_dir": "rtl"}

        german = await http.patch(path, params={"locale": "de"}, json={"name": "Finanzen"})
        assert german.json()["data"]["name_i18n"] == {"en": "Finance", "ar": "مالية", "de": "Finanzen"}

        shown = {"filter": "name:contains:fin", "sort": "name"}
        listed = await http.get("/api/departments", params=shown, headers={"Accept-Language": "de, en"})
        assert [record["name"] for record in listed.json()["data"]] == ["Finanzen"]
        missing = await http.get("/api/departments", params={"filter": "name.de:is_null"})
        assert missing.json()["data"] == []


if __name__ == "__main__":
    asyncio.run(main())
