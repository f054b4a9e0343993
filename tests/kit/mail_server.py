"""A real SMTP server on loopback, by aiosmtpd: with TLS, sign-in, and answers that a test chooses."""

from __future__ import annotations

import asyncio
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

USER, PASSWORD = "app", "pass-word-1"


@dataclass(slots=True)
class Received:
    """One mail as the server took it."""

    sender: str
    recipients: list[str]
    content: EmailMessage


@dataclass(slots=True)
class MailServer:
    """Takes mails; the answers by recipient, and those to MAIL and DATA, are told to it."""

    port: int = 0
    mails: list[Received] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    of_data: str = ""
    of_mail: str = ""
    hangs: bool = False
    sessions: int = 0
    heard: list[str] = field(default_factory=list)  # commands that came without TLS

    async def handle_EHLO(
        self, server: SMTP, session: Session, envelope: Envelope, hostname: str, responses: list[str]
    ) -> list[str]:
        session.host_name = hostname
        self.sessions += 1
        return responses

    async def handle_MAIL(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if session.ssl is None:
            self.heard.append("MAIL")
        if self.hangs:
            await asyncio.Event().wait()
        if self.of_mail:
            return self.of_mail
        envelope.mail_from = address
        return "250 OK"

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if answer := self.answers.get(address):
            return answer
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if self.of_data:
            return self.of_data
        content: Any = message_from_bytes(envelope.content or b"", policy=policy.default)  # type: ignore[arg-type]
        self.mails.append(Received(str(envelope.mail_from), list(envelope.rcpt_tos), content))
        return "250 OK"

    def authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any
    ) -> AuthResult:
        right = LoginPassword(USER.encode(), PASSWORD.encode())
        return AuthResult(success=data == right, handled=False)


@asynccontextmanager
async def mail_server(
    certificate: ssl.SSLContext | None = None, *, implicit: bool = False, sign_in: bool = False, port: int = 0
) -> AsyncIterator[MailServer]:
    """A server; with a certificate it offers STARTTLS, or speaks TLS from the first byte."""
    state = MailServer()
    loop = asyncio.get_running_loop()

    def session() -> SMTP:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it does not know that the line is TLS from the first byte
            return SMTP(
                state,
                hostname="mail.test",
                loop=loop,
                tls_context=None if implicit else certificate,
                auth_required=sign_in,
                auth_require_tls=not implicit,
                authenticator=state.authenticate if sign_in else None,
            )

    server = await loop.create_server(session, "127.0.0.1", port, ssl=certificate if implicit else None)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()
