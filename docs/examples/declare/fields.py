import asyncio
from typing import Literal

from maniflex import Model, Server, field
from maniflex.testing import client


class Account(Model):
    email: str = field(unique=True, immutable=True, filterable=True)
    invite_code: str = field(writeonly=True, min_length=8)
    plan: Literal["free", "paid"] = field(default="free", filterable=True)
    seats: int = field(default=1, min=1, max=500)
    risk_score: float = field(default=0.0, hidden=True)
    nickname: str | None = field(default=None, max_length=40)


server = Server()
server.register(Account)


async def main() -> None:
    async with client(server) as http:
        account = {"email": "ada@example.com", "invite_code": "analytical"}
        created = (await http.post("/api/accounts", json=account)).json()["data"]
        assert created["plan"] == "free"
        assert "invite_code" not in created
        assert "risk_score" not in created

        wrong = {"email": "bob@example.com", "invite_code": "short", "seats": 0, "plan": "gold"}
        refused = await http.post("/api/accounts", json=wrong)
        assert refused.status_code == 422
        assert {problem["field"] for problem in refused.json()["error"]["details"]} == {
            "invite_code",
            "seats",
            "plan",
        }

        again = await http.post("/api/accounts", json=account)
        assert again.status_code == 409


if __name__ == "__main__":
    asyncio.run(main())
