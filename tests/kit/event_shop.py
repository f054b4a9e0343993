"""An application whose orders are events, with groups, a bridge and endpoints, for tests of their pages."""

from __future__ import annotations

from typing import Any

from maniflex import AuthInfo, Fatal, Model, Server, field
from maniflex.events import Event, RedisBus
from maniflex.ext.integration import WebhookReceiver

SECRET = "whsec_" + "c2VjcmV0LW1hcmstc2VjcmV0LW1hcmstc2VjcmV0IQ=="
OWNER = AuthInfo(user_id="ada", tenant_id="t1", roles=("clerk",))
NOBODY_THERE = "http://127.0.0.1:9/hook"


class Order(Model, events=True):
    """What the events are about."""

    title: str = field(filterable=True)
    status: str = field(default="draft")
    api_key: str = field(default="hidden-mark", hidden=True)


class EventShop:
    """The server, and what its groups were handed."""

    def __init__(self, **options: Any) -> None:
        self.server = server = Server(path_prefix="/api")
        server.register(Order)
        self.admin = server.admin(**options)
        self.broken = True  # whether billing fails
        self.billed: list[Event] = []
        self.received: list[str] = []
        server.events.use(RedisBus("redis://127.0.0.1:1"))
        server.webhooks.send(
            NOBODY_THERE, "order.*", secret=SECRET, headers={"X-Key": "header-mark"}, allow_private=True
        )
        server.webhooks.enable(events=["order.*"], allow_http=True, allow_private=True)

        @server.events.subscribe("order.*", group="billing", max_retry=0)
        async def bill(event: Event) -> None:
            if self.broken:
                raise Fatal("the till is <b>closed</b>")
            self.billed.append(event)

        @server.events.subscribe("order.deleted", group="archive")
        async def archive(event: Event) -> None: ...

        receiver = WebhookReceiver(SECRET, scheme="standard")
        receiver.mount(server, "/hooks", {"order.created": self._receive, "webhook.ping": self._receive})

    async def _receive(self, delivery: Any) -> None:
        self.received.append(delivery.event)

    async def add_endpoint(self, url: str, auth: AuthInfo = OWNER, **values: Any) -> str:
        """An endpoint of a client; its id."""
        body = {"url": url, "patterns": ["order.*"], "headers": {"X-Key": "header-mark"}, **values}
        answer = await self.server.call("POST", "/api/webhook_endpoints", json=body, auth=auth)
        assert answer.status == 201, answer.data
        return str(answer.data["id"])
