import asyncio

from maniflex import AuthInfo, Context, Model, Next, Server, Trace
from maniflex.testing import client


class Note(Model):
    text: str


server = Server(trace=Trace(timings=True), slow_after=0.5)
server.register(Note)
failures: list[str] = []


@server.pipeline.auth.middleware()
async def sign_in(ctx: Context, next: Next) -> None:
    ctx.auth = AuthInfo(user_id="ada", roles=["admin"])
    await next()


@server.action("POST", "/greet")
async def greet(ctx: Context) -> None:
    async def mail() -> None:
        raise ConnectionError("no mail server")

    ctx.background(mail)


@server.on_background_panic
def note_failure(what: str, error: BaseException) -> None:
    failures.append(repr(error))


async def main() -> None:
    async with client(server) as http:
        answer = await http.get("/api/notes")
        assert "db;dur=" in answer.headers["server-timing"]
        assert "statement" in answer.headers["server-timing"]
        await http.post("/api/greet")
    assert failures == ["ConnectionError('no mail server')"]


if __name__ == "__main__":
    asyncio.run(main())
