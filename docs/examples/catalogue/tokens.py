import asyncio
from collections.abc import Mapping
from typing import Any

from maniflex import AuthInfo, Context, Model, NotFound, Server, field
from maniflex.middleware import auth, service
from maniflex.testing import client


class Account(Model, headless=True):
    email: str = field(unique=True, filterable=True)
    password: str = field(writeonly=True)


class Note(Model):
    text: str


server = Server()
server.register(Account, Note)
tokens = auth.Tokens("keep-this-in-a-secret-store-not-in-code", issuer="notes", revoker=auth.SqlRevoker())
server.pipeline.auth.register(tokens.bearer())


async def login(ctx: Context, credentials: auth.Credentials) -> AuthInfo | None:
    accounts = await ctx.db(Account).list({"email": credentials.email})
    stored = accounts[0].password if accounts else None  # None takes as long as a wrong password
    if not await auth.verify_password(credentials.password, stored):
        return None
    return AuthInfo(user_id=accounts[0].id, roles=["member"])


async def read_account(ctx: Context, claims: Mapping[str, Any], info: AuthInfo) -> None:
    """Asked with every request, whichever authenticator found the caller."""
    try:
        await ctx.unscoped().db(Account).read(info.user_id)
    except NotFound:
        raise ValueError("the account was deleted") from None


tokens.mount(server, login=login)
server.pipeline.auth.register(auth.verify(read_account))
server.pipeline.service.register(service.hash_field("password", ends=tokens), models=[Account])


async def main() -> None:
    async with client(server) as http:
        password = await auth.hash_password("correct horse")
        await server.db(Account).create(email="ada@example.com", password=password)

        credentials = {"email": "ada@example.com", "password": "correct horse"}
        pair = (await http.post("/api/auth/login", json=credentials)).json()["data"]
        headers = {"Authorization": f"Bearer {pair['access_token']}"}
        assert (await http.post("/api/notes", json={"text": "x"}, headers=headers)).status_code == 201

        used = {"refresh_token": pair["refresh_token"]}
        assert (await http.post("/api/auth/refresh", json=used)).status_code == 200
        assert (await http.post("/api/auth/refresh", json=used)).status_code == 401  # each is good once
        assert (await http.get("/api/notes", headers=headers)).status_code == 200
        [account] = await server.db(Account).list()
        await server.db(Account).update(account.id, password=await auth.hash_password("battery staple"))
        assert (await http.get("/api/notes", headers=headers)).status_code == 401  # signed out everywhere


if __name__ == "__main__":
    asyncio.run(main())
