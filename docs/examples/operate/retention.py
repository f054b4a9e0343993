import asyncio
from datetime import UTC, datetime, timedelta
from typing import Literal

from maniflex import Model, Retention, Server, WithDeletedAt


class Visit(Model, retention="90d"):
    page: str


class Ticket(
    Model,
    WithDeletedAt,
    retention=Retention("2y", since="closed_at", where={"status": "closed"}),
    deleted_retention="30d",
    retention_hold="on_hold",
):
    title: str
    status: Literal["open", "closed"] = "open"
    closed_at: datetime | None = None
    on_hold: bool = False


server = Server(background=False)  # so that this sample can say itself when to sweep
server.register(Visit, Ticket)


async def main() -> None:
    async with server.lifespan():
        tickets = server.db(Ticket)
        long_ago = datetime.now(UTC) - timedelta(days=800)
        await tickets.create(title="Done", status="closed", closed_at=long_ago)
        await tickets.create(title="Before the court", status="closed", closed_at=long_ago, on_hold=True)
        await tickets.create(title="Still open")

        report = await server.retention.sweep()
        assert (report.deleted, report.skipped) == (1, 0)
        assert {ticket.title for ticket in await tickets.list()} == {"Before the court", "Still open"}


if __name__ == "__main__":
    asyncio.run(main())
