import asyncio

from maniflex import Model, Server
from maniflex.middleware import auth, db, idempotency
from maniflex.testing import client

SECRET = "a secret of at least thirty-two bytes"


class Payment(Model):
    amount: int


server = Server()
server.register(Payment)
server.pipeline.auth.register(auth.allow_anonymous(), operations="list")
server.pipeline.auth.register(auth.jwt(SECRET))
server.pipeline.deserialize.register(idempotency.keys(required=True), operations="create", at="after")
server.pipeline.db.register(db.rate_limit(5, 60), operations="create")


async def main() -> None:
    async with client(server) as http:
        document = (await http.get("/api/openapi.json")).json()
    listing, creating = (document["paths"]["/api/payments"][method] for method in ("get", "post"))

    assert listing["security"] == [{"bearer": []}, {}]
    assert creating["security"] == [{"bearer": []}]
    assert "TOKEN_EXPIRED" in creating["x-error-codes"]["401"]
    assert creating["x-error-codes"]["429"] == ["RATE_LIMITED"]
    assert "429" not in listing["responses"]
    [key] = [one for one in creating["parameters"] if one["name"] == "Idempotency-Key"]
    assert key["required"] is True
    assert "Idempotent-Replayed" in creating["responses"]["201"]["headers"]


if __name__ == "__main__":
    asyncio.run(main())
