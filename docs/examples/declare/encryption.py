import asyncio

from maniflex import Model, Server, field
from maniflex.encryption import MemoryKeyProvider
from maniflex.testing import client


class Patient(Model):
    name: str = field(filterable=True)
    ssn: str = field(encrypted=True, unique=True)
    email: str | None = field(default=None, encrypted=True, blind_index="casefold")
    diagnosis: str | None = field(default=None, encrypted="medical")


server = Server()
server.register(Patient)
server.set_key_provider(MemoryKeyProvider())  # for tests; leave it out, and keys come from the environment


async def main() -> None:
    async with client(server) as http:
        body = {"name": "Ada", "ssn": "900-11-2233", "email": "ada@example.org", "diagnosis": "none"}
        ada = (await http.post("/api/patients", json=body)).json()["data"]
        assert ada["diagnosis"] == "none"

        [row] = await server.raw_query("SELECT ssn, ssn_hmac FROM patients")
        assert row["ssn"].startswith("enc:")

        page = await http.get("/api/patients?filter=email:eq:ADA@example.org")
        assert page.json()["data"] == [ada]
        assert (await http.get("/api/patients?filter=diagnosis:eq:none")).status_code == 400

        again = await http.post("/api/patients", json={"name": "Bea", "ssn": "900-11-2233"})
        assert again.json()["error"]["details"][0]["field"] == "ssn"


if __name__ == "__main__":
    asyncio.run(main())
