"""Mails leave with the transaction they belong to, once for each recipient, and leave nothing behind."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from maniflex import Context, Model, Next, Server, field, with_transaction
from maniflex.background.mail.api import attempts_within
from maniflex.background.outbox.model import OutboxMessage
from maniflex.encryption import MemoryKeyProvider
from maniflex.errors import DeclarationError, ValidationFailed
from maniflex.events import Event
from maniflex.ext.mail import ConsoleMailer, EmailMessage, MemoryMailer, RecipientsRefused, SmtpMailer, on
from maniflex.middleware import idempotency, service
from maniflex.testing import FakeClock, client
from tests.kit.certificates import certified
from tests.kit.http import data_of
from tests.kit.mail_server import PASSWORD, USER, MailServer, mail_server
from tests.kit.processes import free_port, run_program, serve_process
from tests.kit.waiting import eventually, until

ADA, BOB, EVE = "ada@example.com", "bob@example.com", "eve@example.com"
TEXT = "a very private text"
LATER = timedelta(hours=1)


class Account(Model, table="accounts"):
    email: str = field(filterable=True)


class Person(Model, table="mail_people", subject="id"):
    name: str = field(personal=True, erased="")


class NotTo:
    """A mailer that has an answer for each recipient, and keeps what it sent."""

    def __init__(self, **codes: int) -> None:
        self.codes = {f"{name}@example.com": code for name, code in codes.items()}
        self.sent: list[tuple[str, ...]] = []
        self.ids: set[str] = set()

    async def send(self, message: EmailMessage) -> None:
        self.ids.add(message.id)
        refused = {to: code for to, code in self.codes.items() if to in message.recipients}
        self.sent.append(tuple(to for to in message.recipients if to not in refused))
        if refused:
            raise RecipientsRefused(refused)


def welcome(ctx: Context) -> EmailMessage | None:
    account = ctx.result
    return None if account.email.startswith("quiet") else EmailMessage(account.email, "Welcome", TEXT)


@asynccontextmanager
async def mailing(
    url: str, mailer: Any, *, declare: Callable[[Server], None] = lambda server: None, **settings: Any
) -> AsyncIterator[tuple[Server, Any, FakeClock]]:
    server, clock = Server(**settings), FakeClock()
    server.register(Account)
    server.mail.use(mailer)
    declare(server)
    async with client(server, database=url, clock=clock) as http:
        yield server, http, clock


def with_mails(server: Server) -> None:
    server.pipeline.db.register(
        service.send_email(welcome), models=[Account], operations=["create"], at="after"
    )


async def drain(server: Server) -> None:
    await server.outbox.drainer().drain()


async def rows(server: Server) -> list[OutboxMessage]:
    return await server.db(OutboxMessage).list(sorts=["seq"])


async def test_a_mail_leaves_after_the_commit_and_never_after_a_rollback(database_url: str) -> None:
    mailer = MemoryMailer()
    async with mailing(database_url, mailer) as (server, _, _):
        async with server.transaction() as tx:
            await server.db(Account).create(email=ADA)
            await server.mail.send(EmailMessage(ADA, "Welcome", TEXT), tx)
            assert mailer.sent == []
        with suppress(ZeroDivisionError):
            async with server.transaction():
                await server.mail.send(EmailMessage(BOB, "Welcome", TEXT))
                raise ZeroDivisionError
        await server.mail.send(EmailMessage(EVE, "Welcome", TEXT))  # in a transaction of its own
        await drain(server)

    assert [mail.to for mail in mailer.sent] == [(ADA,), (EVE,)]


@pytest.mark.parametrize("is_sealed", [True, False])
async def test_what_waits_is_sealed_where_there_are_keys(database_url: str, is_sealed: bool) -> None:
    mailer = NotTo(bob=450)

    def declare(server: Server) -> None:
        if is_sealed:
            server.set_key_provider(MemoryKeyProvider())

    async def is_readable(server: Server) -> bool:
        [stored] = await server.raw_query("SELECT CAST(payload AS text) AS payload FROM outbox_event")
        return any(word in (stored["payload"] or "") for word in (TEXT, ADA, BOB))

    async with mailing(database_url, mailer, declare=declare) as (server, _, clock):
        await server.mail.send(EmailMessage((ADA, BOB), "Welcome", TEXT))
        assert await is_readable(server) is not is_sealed

        await drain(server)  # one of them has it, and the note of that is sealed, too
        assert mailer.sent == [(ADA,)]
        assert await is_readable(server) is not is_sealed
        [row] = await rows(server)
        assert row.last_error is not None
        assert row.last_error.endswith("1 of 2 recipients are to be tried again")

        mailer.codes.clear()
        clock.advance(LATER)
        await drain(server)
        assert mailer.sent == [(ADA,), (BOB,)]
        assert not await is_readable(server)


async def test_mails_from_before_there_were_keys_are_sent(database_url: str) -> None:
    mailer = MemoryMailer()
    server = Server(database_url, background=False)
    server.mail.use(mailer)
    async with server.lifespan(role="client"):
        await server.mail.send(EmailMessage(ADA, "Welcome", TEXT))

    later = Server(database_url, background=False, encryption_legacy="refuse")
    later.set_key_provider(MemoryKeyProvider())
    later.mail.use(mailer)
    async with later.lifespan(role="client"):
        await later.mail.send(EmailMessage(BOB, "Welcome", TEXT))
        await drain(later)
    assert sorted(mail.recipients for mail in mailer.sent) == [(ADA,), (BOB,)]


async def test_a_provider_without_the_key_for_mails_stops_the_start(database_url: str) -> None:
    server = Server(database_url, background=False)
    server.set_key_provider(MemoryKeyProvider({"other": bytes(32)}))
    server.mail.use(MemoryMailer())
    with pytest.raises(DeclarationError, match=r"server\.mail: .*default"):
        async with server.lifespan():
            pass


async def test_the_mail_of_a_write_is_in_its_transaction(database_url: str) -> None:
    mailer = MemoryMailer()

    def declare(server: Server) -> None:
        with_mails(server)

        @server.pipeline.db.middleware(models=[Account], at="after")
        async def refuse(ctx: Context, next: Next) -> None:
            await next()
            if ctx.result.email == EVE:
                ctx.abort(409, "NO", "not her")

    async with mailing(database_url, mailer, declare=declare) as (server, http, _):
        data_of(await http.post("/api/accounts", json={"email": ADA}), 201)
        data_of(await http.post("/api/accounts", json={"email": "quiet@example.com"}), 201)
        assert (await http.post("/api/accounts", json={"email": EVE})).status_code == 409
        refused = await http.post("/api/accounts", json={"email": "no address"})
        await drain(server)
        emails = {one.email for one in await server.db(Account).list()}

    assert refused.status_code == 422  # the mail could not be sent, so the account is not there either
    assert emails == {ADA, "quiet@example.com"}
    assert [mail.to for mail in mailer.sent] == [(ADA,)]


async def test_a_mail_joins_the_transaction_of_the_request(database_url: str) -> None:
    mailer = MemoryMailer()

    def declare(server: Server) -> None:
        server.pipeline.service.register(with_transaction())
        with_mails(server)

        @server.pipeline.service.middleware(models=[Account])
        async def fail_late(ctx: Context, next: Next) -> None:
            await next()
            ctx.abort(409, "LATE", "too late")

    async with mailing(database_url, mailer, declare=declare) as (server, http, _):
        assert (await http.post("/api/accounts", json={"email": ADA})).status_code == 409
        await drain(server)
        assert await server.db(Account).count() == 0

    assert mailer.sent == []


async def test_a_repeated_request_is_mailed_once(database_url: str) -> None:
    mailer = MemoryMailer()

    def declare(server: Server) -> None:
        server.pipeline.deserialize.register(idempotency.keys(), models=[Account], at="after")
        with_mails(server)

    async with mailing(database_url, mailer, declare=declare) as (server, http, _):
        for _ in range(3):
            answer = await http.post("/api/accounts", json={"email": ADA}, headers={"Idempotency-Key": "one"})
            data_of(answer, 201)
        await drain(server)

    assert len(mailer.sent) == 1


async def test_a_key_is_mailed_once(database_url: str) -> None:
    mailer = MemoryMailer()
    async with mailing(database_url, mailer) as (server, _, _):
        first = await server.mail.send(EmailMessage(ADA, "Hello"), idempotency_key="order 7")
        second = await server.mail.send(EmailMessage(ADA, "Hello"), idempotency_key="order 7")
        await drain(server)

    assert first
    assert second is None
    assert len(mailer.sent) == 1


async def test_a_recipient_that_is_refused_for_good_is_not_tried_again_and_nobody_gets_it_twice(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    mailer = NotTo(bob=550, eve=451)
    async with mailing(database_url, mailer) as (server, _, clock):
        await server.mail.send(EmailMessage([ADA, BOB], "Hello", TEXT, cc=EVE))
        await drain(server)
        clock.advance(LATER)
        await drain(server)
        mailer.codes.clear()
        clock.advance(LATER)
        await drain(server)
        [row] = await rows(server)
        numbers = [server.metrics.value("mail_sent_total"), server.metrics.value("mail_failed_total")]

    assert mailer.sent == [(ADA,), (), (EVE,)]
    assert len(mailer.ids) == 1
    assert (row.status, row.payload) == ("delivered", None)
    assert numbers == [2, 1]
    assert f"mail {row.id}: sent to 2 recipients, refused for 1" in caplog.text
    assert not [name for name in (ADA, BOB, EVE, TEXT) if name in caplog.text]


async def test_a_mail_that_nobody_takes_is_dead_and_can_be_put_back(database_url: str) -> None:
    mailer = NotTo(ada=550, bob=553)
    async with mailing(database_url, mailer) as (server, _, _):
        await server.mail.send(EmailMessage([ADA, BOB], "Hello", TEXT))
        await drain(server)
        [row] = await rows(server)
        mailer.codes.clear()
        await server.outbox.redrive(row.id)
        await drain(server)
        [again] = await rows(server)

    assert row.status == "dead"
    assert "all 2 recipients were refused with 550, 553" in (row.last_error or "")
    assert (again.status, mailer.sent[-1]) == ("delivered", (ADA, BOB))


async def test_a_mail_is_tried_for_four_days(sqlite_url: str) -> None:
    mailer = NotTo(ada=451)
    async with mailing(sqlite_url, mailer) as (server, _, clock):
        await server.mail.send(EmailMessage(ADA, "Hello", TEXT))
        began, days = clock.now(), []
        for _ in range(200):
            await drain(server)
            [row] = await rows(server)
            if row.status != "pending":
                break
            days.append((clock.now() - began) / timedelta(days=1))
            clock.move_to(max(row.retry_at, clock.now()))

    assert row.status == "dead"
    assert 3.9 < days[-1] < 4.1
    assert len(mailer.sent) > 90


async def test_what_a_mailer_raises_says_nothing_of_the_mail(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Chatty:
        async def send(self, message: EmailMessage) -> None:
            raise RuntimeError(f"cannot send {message.text} to {message.to}")

    async with mailing(sqlite_url, Chatty()) as (server, _, _):
        await server.mail.send(EmailMessage(ADA, "Hello", TEXT))
        await drain(server)
        [row] = await rows(server)

    assert row.status == "pending"
    assert "RuntimeError" in (row.last_error or "")
    assert not [text for text in (TEXT, ADA) if text in caplog.text or text in (row.last_error or "")]


async def test_nothing_of_a_mail_that_was_sent_is_in_the_database(sqlite_url: str, tmp_path: Path) -> None:
    async with mailing(f"sqlite:///{tmp_path}/a.db", MemoryMailer(), declare=with_mails) as (server, http, _):
        data_of(await http.post("/api/accounts", json={"email": ADA}), 201)
        [row] = await rows(server)
        assert TEXT in str(row.payload)
        await drain(server)
        tables = await server.raw_query("SELECT name FROM sqlite_master WHERE type = 'table'")
        names = [table["name"] for table in tables]
        places = [
            name
            for name in names
            for line in await server.raw_query(f'SELECT * FROM "{name}"')
            if TEXT in str(line)
        ]

    assert "outbox_event" in names
    assert places == []


async def test_a_mail_about_a_person_who_is_erased_is_not_sent(database_url: str) -> None:
    mailer = MemoryMailer()
    async with mailing(database_url, mailer, declare=lambda server: server.register(Person)) as (
        server,
        _,
        _,
    ):
        person = await server.db(Person).create(name="Ada")
        await server.mail.send(EmailMessage(ADA, "Hello", TEXT), subjects=[person.id])
        await server.mail.send(EmailMessage(BOB, "Hello", TEXT))
        await server.erasure.erase(person.id)
        await drain(server)
        [erased, other] = [row for row in await rows(server) if row.kind == "maniflex.mail"]

    assert [mail.to for mail in mailer.sent] == [(BOB,)]
    assert (erased.status, erased.payload, other.status) == ("dead", None, "delivered")


async def test_an_entry_has_a_mailer_of_its_own(sqlite_url: str) -> None:
    own, usual = MemoryMailer(), MemoryMailer()

    def declare(server: Server) -> None:
        entry = service.send_email(welcome, mailer=own)
        server.pipeline.db.register(entry, models=[Account], operations=["create"], at="after")

    async with mailing(sqlite_url, usual, declare=declare) as (server, http, _):
        data_of(await http.post("/api/accounts", json={"email": ADA}), 201)
        await server.mail.send(EmailMessage(BOB, "Hello"))
        await drain(server)

    assert ([mail.to for mail in own.sent], [mail.to for mail in usual.sent]) == ([(ADA,)], [(BOB,)])


async def test_sending_without_a_mailer_is_a_declaration_error(sqlite_url: str) -> None:
    server = Server(sqlite_url)
    server.register(Account)
    with_mails(server)
    with pytest.raises(DeclarationError, match=r"server\.mail\.use"):
        server.seal()

    bare = Server(sqlite_url)
    bare.register(Account)
    async with bare.lifespan():
        with pytest.raises(DeclarationError, match=r"server\.mail\.use"):
            await bare.mail.send(EmailMessage(ADA, "Hello"))
        tables = await bare.raw_query("SELECT name FROM sqlite_master WHERE name LIKE 'outbox%'")
        assert tables == []  # an application without mail has no table of it


def test_wrong_mailers_stop_the_start(sqlite_url: str) -> None:
    server = Server(sqlite_url)
    server.mail.use(MemoryMailer())
    server.mail.use(MemoryMailer())
    server.mail.use(object())  # type: ignore[arg-type]
    with pytest.raises(DeclarationError) as refused:
        server.seal()

    assert "a mailer already" in str(refused.value)
    assert "has no send(message)" in str(refused.value)


def greet(event: Event) -> EmailMessage | None:
    return None if event.data["email"] == EVE else EmailMessage(event.data["email"], "Welcome")


async def test_events_are_mailed_once_by_a_handler(database_url: str) -> None:
    mailer, handler = MemoryMailer(), on(greet)
    with pytest.raises(DeclarationError, match="subscribe"):
        await handler(Event("account.created", {"email": ADA}))

    def declare(server: Server) -> None:
        server.events.emit(Account, operations=["create"])
        server.events.subscribe("account.created")(handler)

    async with mailing(database_url, mailer, declare=declare) as (server, http, _):
        for email in (ADA, EVE):
            data_of(await http.post("/api/accounts", json={"email": email}), 201)
        await server.events.drain()
        event = Event("account.created", {"email": BOB}, id="one")
        for _ in range(2):  # as after a crash
            await handler(event)
        await drain(server)

    assert [mail.to for mail in mailer.sent] == [(ADA,), (BOB,)]


async def test_mails_of_events_need_a_mailer_too(sqlite_url: str) -> None:
    server = Server(sqlite_url)
    server.register(Account)
    server.events.emit(Account)
    server.events.subscribe("account.created")(on(greet))
    with pytest.raises(DeclarationError, match=r"mail\.on, greet: there is no mailer"):
        server.seal()


async def test_the_console_shows_a_mail(capsys: pytest.CaptureFixture[str]) -> None:
    await ConsoleMailer().send(EmailMessage(ADA, "Hello", TEXT))

    shown = capsys.readouterr().out
    assert TEXT in shown
    assert ADA in shown


def test_pauses_add_up_to_a_span() -> None:
    assert attempts_within(lambda n: timedelta(hours=1), timedelta(days=4)) == 97
    assert attempts_within(lambda n: timedelta(days=9), timedelta(days=4)) == 2


# By a real server.


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    context = certified(tmp_path, "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    return context


def smtp(server: MailServer, **options: Any) -> SmtpMailer:
    return SmtpMailer("localhost", server.port, sender="Shop <shop@example.com>", **{"timeout": 5, **options})


@pytest.mark.parametrize("implicit", [False, True], ids=["starttls", "implicit"])
async def test_a_mail_goes_out_encrypted_and_signed_in(trusted: Any, implicit: bool) -> None:
    tls = "implicit" if implicit else "starttls"
    async with mail_server(trusted, implicit=implicit, sign_in=True) as server:
        mailer = smtp(server, username=USER, password=PASSWORD, tls=tls)
        await mailer.send(EmailMessage([ADA, BOB], "Grüße", TEXT, bcc=EVE, id="01"))
        with pytest.raises(Exception, match="SMTPAuthenticationError 535") as refused:
            await smtp(server, username=USER, password="wrong-word", tls=tls).send(EmailMessage(ADA, "Hello"))

    [mail] = server.mails
    assert (mail.sender, mail.recipients) == ("shop@example.com", [ADA, BOB, EVE])
    assert mail.content["Subject"] == "Grüße"
    assert mail.content["Bcc"] is None
    assert mail.content["Message-ID"] == "<01@example.com>"
    assert "wrong-word" not in str(refused.value)


@pytest.mark.parametrize("end", ["\r\n.\r\n", "\n.\n", "\r.\r", "\n.\r\n", "\r\n.\n"])
async def test_no_text_ends_a_mail_before_its_end(end: str) -> None:
    evil = (
        f"first{end}MAIL FROM:<eve@example.com>\r\nRCPT TO:<bob@example.com>\r\nDATA\r\nsecond{end}QUIT\r\n"
    )
    async with mail_server() as server:
        await smtp(server, tls="none").send(EmailMessage(ADA, "Hello", evil, evil))

    [mail] = server.mails
    assert mail.recipients == [ADA]
    assert "second" in str(mail.content)


async def test_without_starttls_nothing_is_sent(trusted: Any) -> None:
    async with mail_server() as server:
        with pytest.raises(Exception, match="SMTPException"):
            await smtp(server).send(EmailMessage(ADA, "Hello", TEXT))

    assert (server.mails, server.heard) == ([], [])


async def test_a_certificate_that_nobody_trusts_gets_no_mail(tmp_path: Path) -> None:
    async with mail_server(certified(tmp_path, "localhost")) as server:
        for mailer in (smtp(server), smtp(server, tls="implicit")):
            with pytest.raises(Exception, match="the mail server failed"):
                await mailer.send(EmailMessage(ADA, "Hello", TEXT))

    assert (server.mails, server.heard) == ([], [])


async def test_answers_of_a_real_server_are_told_apart(sqlite_url: str) -> None:
    async with mail_server() as server, mailing(sqlite_url, smtp(server, tls="none")) as (app, _, clock):
        server.answers = {BOB: "550 no such user", EVE: "451 try later"}
        await app.mail.send(EmailMessage([ADA, BOB, EVE], "Hello", TEXT))
        await drain(app)
        server.answers = {}
        clock.advance(LATER)
        await drain(app)
        [row] = await rows(app)

    assert [mail.recipients for mail in server.mails] == [[ADA], [EVE]]
    assert len({str(mail.content["Message-ID"]) for mail in server.mails}) == 1
    assert row.id in str(server.mails[0].content["Message-ID"])
    assert (row.status, row.payload) == ("delivered", None)


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ({"of_data": "554 spam"}, "dead"),
        ({"of_mail": "553 no"}, "dead"),
        ({"of_data": "451 later"}, "pending"),
        ({"of_mail": "450 later"}, "pending"),
    ],
)
async def test_answers_to_the_whole_mail(sqlite_url: str, answers: dict[str, str], status: str) -> None:
    async with mail_server() as server:
        for name, answer in answers.items():
            setattr(server, name, answer)
        async with mailing(sqlite_url, smtp(server, tls="none")) as (app, _, _):
            await app.mail.send(EmailMessage([ADA, BOB], "Hello", TEXT))
            await drain(app)
            [row] = await rows(app)

    assert row.status == status
    assert server.mails == []


async def test_a_server_that_hangs_is_left_in_time_and_one_that_is_away_is_tried_again(
    sqlite_url: str,
) -> None:
    async with mail_server() as server:
        server.hangs = True
        mailer = smtp(server, tls="none", timeout=0.3)
        async with mailing(sqlite_url, mailer) as (app, _, clock):
            await app.mail.send(EmailMessage(ADA, "Hello", TEXT))
            async with asyncio.timeout(10):
                await drain(app)
            [row] = await rows(app)
            assert (row.status, row.attempts) == ("pending", 1)
            assert "Timeout" in (row.last_error or "")
            server.hangs = False
            clock.advance(LATER)
            await drain(app)

    assert len(server.mails) == 1


APP = """
import os

from maniflex import Model, Server
from maniflex.ext.mail import EmailMessage, SmtpMailer
from maniflex.middleware import service

class Account(Model, table="accounts"):
    email: str

server = Server("sqlite:///app.db", outbox_base_backoff=0.05)
server.register(Account)
server.mail.use(SmtpMailer("127.0.0.1", int(os.environ["SMTP_PORT"]), tls="none", sender="shop@example.com"))
server.pipeline.db.register(
    service.send_email(lambda ctx: EmailMessage(ctx.result.email, "Welcome", "text")),
    models=[Account], operations=["create"], at="after",
)
"""


def write_and_kill(folder: Path, smtp_port: int) -> str:
    """The id of a mail that a server tried to send in vain before it was killed."""
    (folder / "app.py").write_text(APP)
    with serve_process(folder, SMTP_PORT=str(smtp_port)) as served:
        data_of(httpx.post(f"{served.url}/api/accounts", json={"email": ADA}), 201)
        with sqlite3.connect(folder / "app.db") as database:
            tried = "SELECT id FROM outbox_event WHERE attempts > 0 AND lease IS NULL"
            until(lambda: database.execute(tried).fetchone(), "an attempt")
            [id] = database.execute("SELECT id FROM outbox_event").fetchone()
        served.process.kill()
    return str(id)


async def test_a_server_that_is_killed_while_smtp_is_down_sends_after_its_restart(tmp_path: Path) -> None:
    smtp_port = free_port()
    id = await asyncio.to_thread(write_and_kill, tmp_path, smtp_port)

    async with mail_server(port=smtp_port) as server, AsyncExitStack() as stack:
        starting = serve_process(tmp_path, SMTP_PORT=str(smtp_port))
        await asyncio.to_thread(stack.enter_context, starting)
        await eventually(lambda: server.mails, "the mail")

    [mail] = server.mails
    assert mail.recipients == [ADA]
    assert mail.content["Message-ID"] == f"<{id}@example.com>"


UNUSED = """
import asyncio, sys
from maniflex import Model, Server
from maniflex.middleware import service

class Account(Model, table="accounts"):
    email: str

async def main():
    server = Server("sqlite:///:memory:")
    server.register(Account)
    async with server.lifespan():
        pass
    names = (
        *("maniflex.background.mail.api", "maniflex.background.mail.message", "maniflex.ext"),
        *("maniflex._outbound_http", "httpx2", "aiosmtplib"),
    )
    print([name for name in sys.modules if name.startswith(names)])

asyncio.run(main())
"""


def test_an_application_without_mail_loads_none_of_it() -> None:
    with run_program(UNUSED) as program:
        assert program.hear().strip() == "[]"


async def test_no_log_line_names_a_recipient_or_a_text(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("mail.log").setLevel(logging.CRITICAL)  # of the server in this process
    async with mail_server() as server:
        server.answers = {BOB: f"550 {BOB} is unknown: {TEXT}"}
        async with mailing(sqlite_url, smtp(server, tls="none")) as (app, _, _):
            await app.mail.send(EmailMessage([ADA, BOB], "Hello", TEXT))
            await drain(app)

    lines = [record.getMessage() for record in caplog.records if record.name.startswith("maniflex")]
    assert [line for line in lines if "mail " in line]
    assert not [line for line in lines if ADA in line or BOB in line or TEXT in line]


def test_wrong_arguments_of_the_mailer_are_named_together() -> None:
    with pytest.raises(DeclarationError) as refused:
        SmtpMailer("", 0, "app", None, tls="ssl", sender="shop", timeout=0)

    text = str(refused.value)
    assert all(name in text for name in ("host", "port", "password", "tls", "sender", "timeout"))
    with pytest.raises(DeclarationError, match="as it is"):
        SmtpMailer("smtp.example.com", username="a", password="b", tls="none", sender="a@example.com")
    SmtpMailer("127.0.0.1", username="a", password="b", tls="none", sender="a@example.com")


async def test_a_mail_with_a_line_break_is_422_and_nothing_is_stored(database_url: str) -> None:
    server = Server()
    server.register(Account)
    server.mail.use(MemoryMailer())

    @server.action("POST", "/invite")
    async def invite(ctx: Context) -> None:
        body = await ctx.bind_json()
        await server.mail.send(EmailMessage(ADA, body["subject"]))

    async with client(server, database=database_url) as http:
        subject = "Hello\r\nBcc: eve@example.com"
        answer = await http.post("/api/invite", json={"subject": subject})
        assert await rows(server) == []

    assert answer.status_code == 422
    with pytest.raises(ValidationFailed):
        EmailMessage(ADA, subject)
