"""`server.mail`: mails that are stored in the outbox by the transaction they belong to, and sent later.

A mail is a message of the kind `maniflex.mail`. Its handler has a policy of its own: what may pass is tried
again for four days with the pauses of the outbox, what is refused for good is final for its recipient, and
who has the mail is not mailed again. A mail that was sent keeps no payload; one that waits is sealed, where
the application has a key provider.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any, ClassVar

from maniflex._callables import is_async, label_of
from maniflex._clock import Backoff
from maniflex._json import encode
from maniflex._threads import on_thread
from maniflex.background.environment import DeclaredPart, Environment
from maniflex.background.mail.message import EmailMessage
from maniflex.background.mail.port import Mailer
from maniflex.background.outbox.api import LONGEST_BACKOFF, Outbox
from maniflex.background.outbox.handlers import MessageHandler
from maniflex.background.outbox.message import Message
from maniflex.background.outbox.model import PAYLOAD
from maniflex.db.current import current_tx, transaction
from maniflex.db.port import Tx
from maniflex.errors import DeclarationError, Fatal, ManiflexError

KIND = "maniflex.mail"
TRIED_FOR = timedelta(days=4)
_TIMEOUT = timedelta(minutes=2)  # for a mailer that has no limit of its own
_FINAL = 500  # SMTP's answers from here on are for good
_FIRST_MAILER = "default"


class RecipientsRefused(ManiflexError):
    """Raised by a mailer: the others have the mail; the codes are those of SMTP, final from 500 on."""

    def __init__(self, refused: Mapping[str, int]) -> None:
        self.refused = dict(refused)
        codes = ", ".join(map(str, sorted(set(self.refused.values()))))
        super().__init__(f"{len(self.refused)} recipients were answered with {codes}")


class MailFailed(ManiflexError):
    """An attempt failed for some or all recipients; the text has nothing of the mail and no address."""


class Mail(DeclaredPart):
    """Takes the mailers of an application, and mails to be sent."""

    too_late: ClassVar = "the server is sealed; mailers are declared before it starts"
    too_early: ClassVar = "mail is sent once the server is started"
    not_used: ClassVar = "there is no mailer: server.mail.use(SmtpMailer(...)) before the start"

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox
        self._mailers: dict[str, Mailer] = {}
        self._problems: list[str] = []
        self._users: set[str] = set()

    # -- declaring

    def use(self, mailer: Mailer) -> None:
        """Send all mails with this, but for those of entries with a mailer of their own."""
        self.require_open()
        if _FIRST_MAILER in self._mailers:
            self._problems.append("server.mail.use: there is a mailer already")
        self.take(_FIRST_MAILER, mailer)

    def take(self, address: str, mailer: Mailer) -> None:
        """Take a mailer under a name that is the same in every process."""
        if not callable(getattr(mailer, "send", None)) or isinstance(mailer, type):
            self._problems.append(f"server.mail: {mailer!r} has no send(message)")
            return
        if self._mailers.get(address) is mailer:
            return
        self._mailers[address] = mailer
        self._outbox.use()
        self._outbox.handlers.set_handler(self._handler())

    def has_mailer(self, address: str | None = None) -> bool:
        """Whether there is such a mailer, or one for all mails."""
        return (address or _FIRST_MAILER) in self._mailers

    def note_user(self, who: str) -> None:
        """Somebody sends without naming a mailer, so there has to be one for all mails."""
        self._users.add(who)

    # -- being wired

    @property
    def is_used(self) -> bool:
        return bool(self._mailers)

    def problems(self) -> list[str]:
        missing = [] if self.has_mailer() else [f"{who}: {self.not_used}" for who in sorted(self._users)]
        return [*self._problems, *missing]

    def attach(self, environment: Environment) -> None:
        super().attach(environment)
        if self.is_used:
            pauses = Backoff(environment.config.outbox_base_backoff, LONGEST_BACKOFF, jitter=0)
            self._outbox.handlers.set_handler(self._handler(attempts_within(pauses, TRIED_FOR)))

    def _handler(self, max_attempts: int | None = None) -> MessageHandler:
        limits = [getattr(mailer, "timeout", None) for mailer in self._mailers.values()]
        # Its own limit comes first, so that an attempt that hangs is one that the mailer has ended.
        timeout = max([_TIMEOUT, *(2 * limit for limit in limits if isinstance(limit, timedelta))])
        return MessageHandler.of(
            KIND,
            self._deliver,
            None,
            timeout,
            max_attempts=max_attempts,
            forgets_payload=True,
            has_plain_errors=True,
        )

    # -- sending

    async def send(
        self,
        message: EmailMessage,
        tx: Tx | None = None,
        idempotency_key: str | None = None,
        *,
        subjects: Sequence[str] = (),
        mailer: str | None = None,
    ) -> str | None:
        """Store the mail in the open transaction, or the one handed over, or one of its own; its id.

        It leaves after the commit, and never after a rollback. A key that was used before, as long as the
        inbox remembers it, sends nothing and gives None. `subjects` are the persons it is about: their
        erasure blanks a mail that was not sent.
        """
        environment = self.require_sealed()
        if not self.has_mailer(mailer):
            raise DeclarationError(self.not_used)
        payload = {**message.as_payload(), "mailer": mailer or _FIRST_MAILER}
        open_tx = tx or current_tx(environment.adapter)
        if open_tx is not None:
            return await self._store(payload, open_tx, idempotency_key, subjects)
        async with transaction(environment.adapter) as own_tx:
            return await self._store(payload, own_tx, idempotency_key, subjects)

    async def _store(
        self, payload: dict[str, Any], tx: Tx, idempotency_key: str | None, subjects: Sequence[str]
    ) -> str | None:
        if idempotency_key is not None:
            mark = sha256(idempotency_key.encode()).hexdigest()
            if not await self._outbox.inbox.once(mark, tx, KIND):
                return None
        key_id = self.require_sealed().runs.sealing.keys.framework_key
        return (await self._outbox.enqueue(KIND, payload, subjects=subjects, tx=tx, encrypted=key_id)).id

    # -- delivering

    async def _deliver(self, message: Message) -> None:
        environment, payload = self.require_sealed(), message.payload
        if payload is None:
            raise Fatal("the mail was erased")
        mailer = self._mailers.get(payload["mailer"])
        if mailer is None:
            raise MailFailed(f"this server has no mailer {payload['mailer']!r}")
        mail = EmailMessage.from_payload(payload, message.id, message.created_at)
        answers = await _attempt(mailer, mail)
        final = [code for code in answers.values() if code >= _FINAL]
        later = [address for address, code in answers.items() if code < _FINAL]
        newly = len(mail.recipients) - len(answers)
        before = payload.get("outcomes", {"accepted": 0, "refused": 0})
        outcomes = {"accepted": before["accepted"] + newly, "refused": before["refused"] + len(final)}
        self._count(newly, len(final))
        if later:
            if newly or final:
                await self._note(message.id, {**payload, "pending": later, "outcomes": outcomes})
            raise MailFailed(f"{len(later)} of {len(mail.recipients)} recipients are to be tried again")
        if not outcomes["accepted"]:
            codes = ", ".join(map(str, sorted(set(final))))
            raise Fatal(f"all {outcomes['refused']} recipients were refused with {codes}")
        log = environment.logger.warning if outcomes["refused"] else environment.logger.info
        log("mail %s: sent to %d recipients, refused for %d", message.id, *outcomes.values())

    async def _note(self, id: str, payload: dict[str, Any]) -> None:
        """Write down who is still to get the mail, so that nobody else is mailed again."""
        sealing = self.require_sealed().runs.sealing
        key_id = sealing.keys.framework_key
        text = encode(payload, "payload", to_seal=key_id is not None)
        await self._outbox.store.rewrite(id, await sealing.keep(text, key_id, PAYLOAD, id))

    def _count(self, delivered: int, refused: int) -> None:
        metrics = self.require_sealed().metrics
        if delivered:
            metrics.add("mail_sent_total", delivered)
        if refused:
            metrics.add("mail_failed_total", refused)


async def _attempt(mailer: Mailer, mail: EmailMessage) -> dict[str, int]:
    """Send it; the recipients who did not get it, with the answer."""
    try:
        await mailer.send(mail)
    except RecipientsRefused as error:
        return {address: code for address, code in error.refused.items() if address in mail.recipients}
    except (MailFailed, Fatal):
        raise
    except Exception as error:
        # Not its text: who knows what of the mail it has.
        raise MailFailed(f"the mailer failed: {type(error).__name__}") from None
    return {}


def attempts_within(pauses: Callable[[int], timedelta], span: timedelta) -> int:
    """How many attempts are made until the span is over."""
    attempts, time = 1, timedelta()
    while time < span:
        time += max(pauses(attempts), timedelta(milliseconds=1))
        attempts += 1
    return attempts


class EventMail:
    """A handler of events that sends the mail which `build(event)` makes of each; None sends nothing.

    An event that comes twice is mailed once, by its source and id.
    """

    def __init__(self, build: Callable[[Any], Any]) -> None:
        if not callable(build):
            raise DeclarationError("mail.on: build is a function of (event)")
        self._build = build
        self._mail: Mail | None = None
        self.__name__ = label_of(build)

    def bind_mail(self, mail: Mail) -> None:
        """Send with `server.mail` of the server whose events it handles."""
        self._mail = mail
        mail.note_user(f"mail.on, {self.__name__}")

    async def __call__(self, event: Any) -> None:
        if self._mail is None:
            raise DeclarationError(
                "mail.on makes a handler of events: server.events.subscribe(…)(mail.on(build))"
            )
        outcome = (
            self._build(event) if is_async(self._build) else await on_thread(partial(self._build, event))
        )
        message = await outcome if inspect.isawaitable(outcome) else outcome
        if message is not None:
            key = encode([self.__name__, event.source, event.id], "key")
            await self._mail.send(message, idempotency_key=key)
