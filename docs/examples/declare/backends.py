import asyncio
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import httpx

from maniflex import Conflict, Model, NotFound, Server, Unavailable, field
from maniflex.db.backend import BackendCondition, BackendPage, BackendQuery
from maniflex.testing import client


class QuoteService:
    """Quotes that another service keeps, behind `GET /quotes`, `GET /quotes/{id}` and so on."""

    operators = frozenset({"eq", "in"})
    sorts = False

    def __init__(self) -> None:
        self.http = httpx.AsyncClient(base_url="http://quotes.internal/api", timeout=5)

    async def list(self, query: BackendQuery) -> BackendPage:
        limit = query.limit or 100
        params = [("limit", str(limit)), ("page", str(query.offset // limit + 1))]
        for condition in query.conditions:
            assert isinstance(condition, BackendCondition)  # there are no groups without `any_of = True`
            value = condition.value if condition.op == "eq" else ",".join(condition.value)
            params.append(("filter", f"{condition.field}:{condition.op}:{value}"))
        answer = await self._send("GET", "quotes", params=params)
        return BackendPage(answer["data"], answer["meta"]["total"])

    async def read(self, record_id: str) -> Mapping[str, Any]:
        return await self._record("GET", f"quotes/{record_id}")

    async def create(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._record("POST", "quotes", json={**values, "price": str(values["price"])})

    async def delete(self, record_id: str) -> None:
        await self._send("DELETE", f"quotes/{record_id}")

    async def _record(self, method: str, path: str, **more: Any) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = (await self._send(method, path, **more))["data"]
        return answer

    async def _send(self, method: str, path: str, **more: Any) -> Any:
        try:
            response = await self.http.request(method, path, **more)
        except httpx.TransportError as error:
            raise Unavailable() from error
        if response.status_code == 404:
            raise NotFound()
        if response.status_code == 409:
            raise Conflict()
        response.raise_for_status()  # anything else is answered as 502
        return response.json() if response.content else None


service = QuoteService()


class Quote(Model, backend=service):
    symbol: str = field(filterable=True)
    price: Decimal


server = Server("sqlite://:memory:")
server.register(Quote)


class KeptQuote(Model, table="quotes"):  # what the other service has, here a server of its own
    symbol: str = field(filterable=True)
    price: Decimal


quotes = Server("sqlite://:memory:")
quotes.register(KeptQuote)


async def main() -> None:
    async with client(quotes) as internal, client(server) as http:
        internal.base_url = httpx.URL("http://test/api")
        service.http = internal

        quote = (await http.post("/api/quotes", json={"symbol": "ACME", "price": "12.50"})).json()["data"]
        listed = (await http.get("/api/quotes?filter=symbol:eq:ACME")).json()
        assert (listed["data"], listed["meta"]["total"]) == ([quote], 1)

        assert (await http.get("/api/quotes?filter=symbol:like:A%")).status_code == 400
        assert (await http.patch(f"/api/quotes/{quote['id']}", json={"price": "1"})).status_code == 405
        assert (await http.delete(f"/api/quotes/{quote['id']}")).status_code == 204
        assert (await http.get(f"/api/quotes/{quote['id']}")).status_code == 404


if __name__ == "__main__":
    asyncio.run(main())
