import asyncio

from maniflex import Model, Server
from maniflex.middleware import body
from maniflex.testing import client


class Document(Model):
    title: str
    pages: int = 0


server = Server()
server.register(Document)
server.pipeline.deserialize.register(body.max_body_size("16MB"), models=[Document])
server.pipeline.validate.register(body.reject_unknown_fields())
server.pipeline.validate.register(body.coerce_types())


async def main() -> None:
    async with client(server) as http:
        answer = await http.post("/api/documents", json={"title": "Deed", "pages": "12"})
        assert answer.json()["data"]["pages"] == 12
        answer = await http.post("/api/documents", json={"titel": "Deed"})
        assert {detail["field"] for detail in answer.json()["error"]["details"]} == {"title", "titel"}


if __name__ == "__main__":
    asyncio.run(main())
