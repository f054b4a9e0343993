"""An application with every kind of durable work, for the tests of the operations panel."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel

from maniflex import Fatal, Model, Run, Server, field, scheduled

OPERATIONS = "/-/operations"


class Order(Model):
    """Something that runs and messages are about."""

    title: str = field(filterable=True)
    status: str = field(default="draft", filterable=True)
    publish_at: datetime | None = scheduled(set_field="status", from_="draft", to="published")


class Receipt(BaseModel):
    """The payload of a receipt."""

    order_id: int
    note: str = ""
    api_key: str | None = None


class Workshop:
    """The server, and what its handlers were given."""

    def __init__(self, **options: Any) -> None:
        self.server = Server(path_prefix="/api")
        self.server.register(Order)
        self.admin = self.server.admin(**options)
        self.broken = True  # whether receipts and messages fail
        self.delivered: list[str] = []
        self.receipts: list[int] = []
        self._declare(self.server)

    def _declare(self, server: Server) -> None:
        @server.work.handler("email.receipt.v1", payload=Receipt, max_attempts=1)
        async def send_receipt(run: Run) -> dict[str, Any]:
            receipt: Receipt = run.payload
            await run.step("render", lambda: {"pages": 2, "token": "hidden-token"})
            if self.broken:
                raise Fatal("the printer is <b>out of paper</b>")
            self.receipts.append(receipt.order_id)
            return {"sent": True, "password": "hidden-password"}

        @server.work.handler("report.daily.v1")
        async def report(run: Run) -> dict[str, Any]:
            return {"signal": await run.wait_for("paid")} if run.payload.get("waits") else {}

        @server.work.handler("audit.internal.v1", internal=True)
        async def audit(run: Run) -> None: ...

        @server.outbox.handler("order.placed")
        async def placed(message: Any) -> None:
            if self.broken:
                raise Fatal(f"the broker refused {message.payload['n'] % 2}")
            self.delivered.append(message.id)

        @server.outbox.handler("order.paid")
        async def paid(message: Any) -> None:
            raise Fatal("never")

        server.schedules.add(
            "nightly", cron="30 2 * * *", timezone="Europe/Berlin", run="report.daily.v1", payload={}
        )

    async def work(self) -> None:
        """Have all due runs worked on."""
        await self.server.work.worker().drain()

    async def fail(self, order_id: int = 7, **options: Any) -> str:
        """A run that has failed."""
        run = await self.server.work.submit("email.receipt.v1", {"order_id": order_id}, **options)
        await self.work()
        return run.id
