"""Mail: messages, and what sends them.

    from maniflex.ext.mail import EmailMessage, SmtpMailer

    server.mail.use(SmtpMailer("smtp.example.com", username="app", password=…, sender="shop@example.com"))
    await server.mail.send(EmailMessage("ada@example.com", "Welcome", "Thanks for signing up."))

A mailer is anything with `async send(message)`. It raises `RecipientsRefused` where some got no mail, and
anything else where nobody did.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO

from maniflex._callables import explain_class
from maniflex.background.declaring import as_duration, duration_problems
from maniflex.background.mail.api import EventMail, MailFailed, RecipientsRefused
from maniflex.background.mail.message import EmailMessage, address_of, address_problem
from maniflex.background.mail.port import Mailer
from maniflex.errors import DeclarationError
from maniflex.middleware.arguments import is_text

if TYPE_CHECKING:
    import aiosmtplib

__all__ = [
    "ConsoleMailer",
    "EmailMessage",
    "MailFailed",
    "Mailer",
    "MemoryMailer",
    "RecipientsRefused",
    "SmtpMailer",
    "on",
]

_MODES = ("starttls", "implicit", "none")
_FINAL = 500
_FAREWELL = 2  # seconds for the goodbye, when the mail is there already


def on(build: Callable[[Any], Any]) -> EventMail:
    """A handler of events that sends the mail which `build(event)` makes of each, or none for None."""
    return EventMail(build)


@explain_class
class SmtpMailer:
    """Sends by an SMTP server; `tls` is `starttls`, `implicit` (mostly on port 465) or `none`.

    `sender` is for mails that name none. A server that does not offer STARTTLS gets no mail.
    """

    def __init__(
        self,
        host: str,
        port: int = 587,
        username: str | None = None,
        password: str | None = None,
        tls: str = "starttls",
        *,
        sender: str,
        timeout: timedelta | float = timedelta(seconds=30),
    ) -> None:
        problems = [*duration_problems(timeout=timeout)]
        if not is_text(host):
            problems.append("host is the name of a mail server")
        if type(port) is not int or not 0 < port < 65536:
            problems.append(f"port is a number from 1 to 65535, not {port!r}")
        if tls not in _MODES:
            problems.append(f"tls is one of {', '.join(_MODES)}, not {tls!r}")
        if (username is None) != (password is None):
            problems.append("username and password belong together")
        if username is not None and tls == "none" and not _is_loopback(host):
            problems.append("with tls='none' the password would go over the network as it is")
        if (problem := address_problem(sender)) is not None:
            problems.append(f"sender: {problem}")
        if problems:
            raise DeclarationError("SmtpMailer: " + "; ".join(problems))
        try:
            import aiosmtplib
        except ImportError as missing:
            raise DeclarationError("SmtpMailer needs aiosmtplib: pip install 'maniflex[mail]'") from missing
        self.host, self.port, self.sender, self.tls = host, port, sender, tls
        self.timeout = as_duration(timeout, "timeout")
        self._login = None if username is None else (username, password)
        self._errors = aiosmtplib

    def __repr__(self) -> str:
        return f"SmtpMailer({self.host!r}, {self.port})"

    async def send(self, message: EmailMessage) -> None:
        """Hand the mail to the server, for all recipients at once."""
        sender = address_of(message.sender or self.sender).addr_spec
        content = message.mime(self.sender).as_bytes()
        smtp = self._client()
        try:
            async with asyncio.timeout(self.timeout.total_seconds()):
                await smtp.connect()
                answers = await self._hand_over(smtp, sender, message.recipients, content)
        except (TimeoutError, OSError, self._errors.SMTPException) as error:
            raise MailFailed(f"the mail server failed: {_kind_of(error)}") from None
        finally:
            await _leave(smtp)
        if answers:
            raise RecipientsRefused(answers)

    def _client(self) -> aiosmtplib.SMTP:
        username, password = self._login or (None, None)
        return self._errors.SMTP(
            hostname=self.host,
            port=self.port,
            username=username,
            password=password,
            use_tls=self.tls == "implicit",
            start_tls=self.tls == "starttls",
            tls_context=None if self.tls == "none" else ssl.create_default_context(),
            timeout=self.timeout.total_seconds(),
            local_hostname=_own_name(),
        )

    async def _hand_over(
        self, smtp: aiosmtplib.SMTP, sender: str, recipients: tuple[str, ...], content: bytes
    ) -> dict[str, int]:
        """Say sender, recipients and mail; who was refused, with the code of the answer."""
        try:
            answers, _ = await smtp.sendmail(sender, recipients, content)
            return {address: answer.code for address, answer in answers.items()}
        except self._errors.SMTPRecipientsRefused as error:
            return {one.recipient: one.code for one in error.recipients}
        except (self._errors.SMTPSenderRefused, self._errors.SMTPDataError) as error:
            if error.code < _FINAL:
                raise
            return dict.fromkeys(recipients, error.code)


async def _leave(smtp: aiosmtplib.SMTP) -> None:
    """Close the connection; what goes wrong now does not undo what was sent."""
    if smtp.is_connected:
        with suppress(Exception):
            async with asyncio.timeout(_FAREWELL):
                await smtp.quit()
    smtp.close()


def _kind_of(error: BaseException) -> str:
    """An error without its text, which may repeat what was said."""
    code = getattr(error, "code", None)
    return type(error).__name__ + (f" {code}" if isinstance(code, int) else "")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _own_name() -> str:
    name = socket.gethostname()
    return name if name.isascii() and name.replace("-", "").replace(".", "").isalnum() else "localhost"


class ConsoleMailer:
    """Writes mails to the terminal, for development."""

    def __init__(self, stream: TextIO | None = None, sender: str = "console@localhost") -> None:
        self._stream = stream
        self._sender = sender

    async def send(self, message: EmailMessage) -> None:
        """Write the mail as it would go out."""
        text = message.mime(self._sender).as_string()
        print(f"--- mail to {', '.join(message.recipients)}\n{text}\n---", file=self._stream or sys.stdout)


class MemoryMailer:
    """Keeps mails in `sent`, for tests."""

    def __init__(self) -> None:
        self.sent: list[EmailMessage] = []

    async def send(self, message: EmailMessage) -> None:
        """Keep the mail."""
        self.sent.append(message)
