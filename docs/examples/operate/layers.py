import asyncio

from starlette.middleware.gzip import GZipMiddleware

from maniflex import Model, Server
from maniflex.pipeline.observation import Observation
from maniflex.testing import client


class Note(Model):
    text: str


server = Server()
server.register(Note)
server.use(GZipMiddleware)

slow: list[str] = []


@server.observe
def note_slow(request: Observation) -> None:
    if request.duration >= 0:  # seconds; a real limit would be higher
        slow.append(f"{request.method} {request.route} {request.status}")


async def main() -> None:
    async with client(server) as http:
        answer = await http.get("/api/openapi.json")
        assert answer.headers["content-encoding"] == "gzip"
        await http.get("/api/notes/17")
        await http.get("/elsewhere")

    assert slow == ["GET /api/openapi.json 200", "GET /api/notes/{id} 404", "GET  404"]


if __name__ == "__main__":
    asyncio.run(main())
