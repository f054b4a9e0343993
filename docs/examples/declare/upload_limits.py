import asyncio
from typing import Any

from maniflex import AuthInfo, Context, Next, Server
from maniflex.middleware import idempotency
from maniflex.testing import client

PAID = {"acme": 1000}  # bytes


async def quota(owner: str) -> int | None:
    return PAID.get(owner, 0)


async def sign_in(ctx: Context, next: Next) -> None:
    ctx.auth = AuthInfo(user_id="ada", tenant_id=ctx.header("X-Tenant") or "")
    await next()


server = Server(storage="memory:", file_quota=quota, files_middleware=[idempotency.keys()])
server.pipeline.auth.register(sign_in)


async def main() -> None:
    async with client(server) as http:
        acme = {"X-Tenant": "acme"}

        async def upload(size: int, **headers: str) -> tuple[int, Any]:
            part = {"file": ("a.bin", bytes(size))}
            answer = await http.post("/api/files", files=part, headers={**acme, **headers})
            return answer.status_code, answer.json()

        key = {"Idempotency-Key": "8e03978e-40d5-43dd-bc93-6894a57f9324"}
        first, again = await upload(600, **key), await upload(600, **key)
        assert first == again  # stored once
        status, other = await upload(601, **key)
        assert (status, other["error"]["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")

        assert (await upload(401))[0] == 413  # 600 of 1000 bytes are used
        await http.delete(f"/api/files/{first[1]['data']['key']}", headers=acme)
        assert (await upload(401))[0] == 201


if __name__ == "__main__":
    asyncio.run(main())
