import asyncio

from maniflex import Run, Server
from maniflex.encryption import MemoryKeyProvider

server = Server()
server.set_key_provider(MemoryKeyProvider())  # for tests; leave it out, and keys come from the environment


@server.work.handler("kyc.check.v1", encrypted=True)
async def check(run: Run) -> dict[str, str]:
    return {"checked": run.payload["passport"]}


async def main() -> None:
    async with server.lifespan():
        run = await server.work.submit("kyc.check.v1", {"passport": "C01X00T47"})
        done = await server.work.wait(run.id, timeout=30)
        assert done.result == {"checked": "C01X00T47"}

        [row] = await server.raw_query("SELECT payload, result FROM workflow_run")
        assert row["payload"].startswith('"enc:')
        assert "C01X" not in row["result"]


if __name__ == "__main__":
    asyncio.run(main())
