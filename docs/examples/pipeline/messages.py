import asyncio

from maniflex import LocaleOptions, Model, Server, field
from maniflex.testing import client


class Note(Model):
    title: str = field(max_length=20)


server = Server(
    locale=LocaleOptions(from_header=True),
    messages={
        "de": {"record not found": "Diese Notiz gibt es nicht"},
        "fr": {"sign in first": "connectez-vous"},
    },
)
server.register(Note)


async def main() -> None:
    async with client(server) as http:
        refused = await http.post("/api/notes", json={}, headers={"Accept-Language": "de"})
        error = refused.json()["error"]
        assert error["code"] == "VALIDATION_FAILED"
        assert error["message"] == "ein oder mehrere Felder sind ungültig"
        assert error["details"][0]["message"] == "Feld „title“ ist erforderlich"

        missing = await http.get("/api/notes/x", params={"locale": "de"})
        assert missing.json()["error"]["message"] == "Diese Notiz gibt es nicht"
        assert (await http.get("/api/notes/x")).json()["error"]["message"] == "record not found"


if __name__ == "__main__":
    asyncio.run(main())
