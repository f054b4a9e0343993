"""A program of a customer, who is told of their own orders: it checks every delivery, keeps it and prints it.

`WEBHOOK_SECRET=whsec_… maniflex run examples.orders.receiver:server --port 8090`
"""

import os

from maniflex import DeclarationError, Model, Operation, Server, field
from maniflex.ext.integration import ReceivedWebhook, WebhookReceiver
from maniflex.middleware import auth

EVENTS = ("order.created", "order.updated", "order.deleted", "webhook.ping")


class Told(Model, table="told", operations=Operation.READS):
    """A delivery that was signed as it should be."""

    event: str = field(filterable=True)
    item: str | None = None
    status: str | None = None


def create_server(secret: str, database: str = "sqlite:///:memory:") -> Server:
    server = Server(database, openapi_enabled=False)
    server.register(Told)
    server.pipeline.auth.register(auth.allow_public_read(), models=[Told])  # it is for this machine alone

    async def note(delivery: ReceivedWebhook) -> None:
        data = delivery.json()["data"]
        told = await server.db(Told).create(
            event=delivery.event, item=data.get("item"), status=data.get("status")
        )
        print("told:", told.event, told.item or "", told.status or "", flush=True)

    # A sender repeats what it got no answer to; with the inbox each delivery is noted once.
    receiver = WebhookReceiver(secret, scheme="standard", replay="inbox", on_replay="accept")
    receiver.mount(server, "/hooks", dict.fromkeys(EVENTS, note))
    return server


if not (SECRET := os.environ.get("WEBHOOK_SECRET")):
    raise DeclarationError(
        "WEBHOOK_SECRET is not set; the answer to POST /webhook_endpoints of the shop shows it"
    )
server = create_server(SECRET)
