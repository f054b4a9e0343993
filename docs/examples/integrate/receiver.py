import asyncio
import hashlib
import hmac

from maniflex import Model, Server
from maniflex.ext.integration import ReceivedWebhook, WebhookReceiver
from maniflex.testing import client


class Payment(Model):
    amount: int


server = Server(background=False)
server.register(Payment)


async def note_payment(delivery: ReceivedWebhook) -> None:
    await server.db(Payment).create(amount=delivery.json()["amount"])


receiver = WebhookReceiver("a secret of the sender", replay="inbox")
receiver.mount(server, "/hooks/payments", {"payment.succeeded": note_payment})


async def main() -> None:
    body = b'{"amount": 7}'
    headers = {
        "X-Hub-Signature-256": "sha256="
        + hmac.new(b"a secret of the sender", body, hashlib.sha256).hexdigest(),
        "X-Event-Type": "payment.succeeded",
        "X-Delivery-Id": "evt_1",
    }
    async with client(server) as http:
        answers = [await http.post("/api/hooks/payments", content=body, headers=headers) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [204, 409]
        assert await server.db(Payment).count() == 1

        headers["X-Hub-Signature-256"] = "sha256=" + "0" * 64
        assert (await http.post("/api/hooks/payments", content=body, headers=headers)).status_code == 401


if __name__ == "__main__":
    asyncio.run(main())
