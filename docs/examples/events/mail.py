import asyncio

from maniflex import Context, Model, Server
from maniflex.ext.mail import EmailMessage, MemoryMailer
from maniflex.middleware import service
from maniflex.testing import client


class Account(Model):
    email: str


server = Server(background=False)
server.register(Account)
mailer = (
    MemoryMailer()
)  # or SmtpMailer("smtp.example.com", username="app", password=…, sender="shop@example.com")
server.mail.use(mailer)


def welcome(ctx: Context) -> EmailMessage:
    return EmailMessage(ctx.result.email, "Welcome", "Thanks for signing up.")


server.pipeline.db.register(service.send_email(welcome), models=[Account], operations=["create"], at="after")


async def main() -> None:
    async with client(server) as http:
        assert (await http.post("/api/accounts", json={"email": "ada@example.com"})).status_code == 201

        async with server.transaction():
            account = await server.db(Account).create(email="bob@example.com")
            await server.mail.send(EmailMessage(account.email, "Hello", "by code"))

        await server.outbox.drainer().drain()  # what a relay does in a server that works in the background
        assert [mail.recipients for mail in mailer.sent] == [("ada@example.com",), ("bob@example.com",)]


if __name__ == "__main__":
    asyncio.run(main())
