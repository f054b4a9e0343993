import asyncio
from datetime import UTC, datetime, timedelta

import jwt

from maniflex import AuthInfo, Model, Operation, Server
from maniflex.middleware import auth
from maniflex.testing import client

SECRET = "keep-this-in-a-secret-store-not-in-code"
CI_KEY = "a-long-random-key-for-the-build-server"


class Article(Model):
    title: str


server = Server()
server.register(Article)

# Everybody may read; writing needs a token or a key, deleting the role "editor".
server.pipeline.auth.register(auth.allow_public_read())
server.pipeline.auth.register(auth.jwt(SECRET, issuer="https://login.example.com"))
server.pipeline.auth.register(auth.api_keys(keys={CI_KEY: AuthInfo(user_id="ci", roles=["writer"])}))
server.pipeline.auth.register(auth.require_role("editor"), operations=Operation.DELETE)


def token(**claims: object) -> str:
    """What the login server would give to a client."""
    usual = {"iss": "https://login.example.com", "sub": "ada", "exp": datetime.now(UTC) + timedelta(hours=1)}
    return jwt.encode({**usual, **claims}, SECRET, "HS256")


async def main() -> None:
    async with client(server) as http:
        nobody = await http.post("/api/articles", json={"title": "Hello"})
        assert (nobody.status_code, nobody.json()["error"]["code"]) == (401, "UNAUTHORIZED")

        made = await http.post("/api/articles", json={"title": "Hello"}, headers={"X-API-Key": CI_KEY})
        path = f"/api/articles/{made.json()['data']['id']}"
        assert (await http.get(path)).status_code == 200

        reader = {"Authorization": f"Bearer {token()}"}
        editor = {"Authorization": f"Bearer {token(roles=['editor'])}"}
        assert (await http.delete(path, headers=reader)).status_code == 403
        assert (await http.delete(path, headers=editor)).status_code == 204


if __name__ == "__main__":
    asyncio.run(main())
