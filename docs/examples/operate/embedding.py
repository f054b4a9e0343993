import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI

from maniflex import Model, Server


class Note(Model):
    text: str


notes = Server(database="sqlite:///:memory:")
notes.register(Note)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with notes.lifespan():
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/hello")
def hello() -> dict[str, str]:
    return {"hello": "from FastAPI"}


app.mount("/", notes)


async def main() -> None:
    async with (
        lifespan(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://notes") as http,
    ):
        assert (await http.get("/hello")).json() == {"hello": "from FastAPI"}
        created = await http.post("/api/notes", json={"text": "mounted"})
        assert created.status_code == 201


if __name__ == "__main__":
    asyncio.run(main())
