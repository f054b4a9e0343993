import asyncio
from typing import Any

from maniflex import AuthInfo, Model, Server
from maniflex.events import Event, InProcessBus
from maniflex.realtime import BearerToken, Hub
from maniflex.testing import websocket


class Invoice(Model):
    total: int


TOKENS = {"t-ada": AuthInfo("ada", tenant_id="red"), "t-eve": AuthInfo("eve", tenant_id="blue")}


def own_tenant(auth: AuthInfo, event: Event) -> Any:
    if event.tenant_id != auth.tenant_id:
        return False
    return event.with_data({"total": event.data["total"]}, None)  # and nothing else of it


bus = InProcessBus()
hub = Hub(bus, authenticator=BearerToken(TOKENS.get), visibility=own_tenant)
server = Server()
server.register(Invoice)
server.add_service(hub)


async def main() -> None:
    async with server.lifespan(), websocket(hub, query={"access_token": "t-ada"}) as ws:
        await ws.subscribe("invoice.*")
        await bus.publish(Event("invoice.paid", {"total": 7, "card": "4111"}, tenant_id="blue"))
        await bus.publish(Event("invoice.paid", {"total": 8, "card": "4222"}, tenant_id="red"))
        message = await ws.receive()
        assert message["data"]["data"] == {"total": 8}


if __name__ == "__main__":
    asyncio.run(main())
