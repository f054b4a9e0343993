import asyncio
from decimal import Decimal

from pydantic import BaseModel

from maniflex import Run, Server

server = Server(background=False)


class Charge(BaseModel):
    invoice_id: str
    amount: Decimal


@server.work.handler("billing.charge.v1", payload=Charge)
async def charge(run: Run[Charge]) -> Charge:
    return run.payload.model_copy(update={"amount": run.payload.amount * 2})


async def main() -> None:
    async with server.lifespan():
        good = await server.work.submit("billing.charge.v1", Charge(invoice_id="7", amount=Decimal("4.50")))
        bad = await server.work.submit("billing.charge.v1", {"amount": "much"})
        await server.work.worker().drain()

        assert (await server.work.get(good.id)).result == {"invoice_id": "7", "amount": "9.00"}
        failed = await server.work.get(bad.id)
        assert (failed.status, failed.attempt) == ("failed", 1)  # trying again would not mend it
        assert failed.error is not None
        assert failed.error["code"] == "payload_does_not_fit"


if __name__ == "__main__":
    asyncio.run(main())
