"""What sends mails: a file of its own, because `service.send_email` names it and loads nothing of mail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from maniflex.background.mail.message import EmailMessage


class Mailer(Protocol):
    """Sends one mail to its `recipients`; what it raises is a failed attempt."""

    async def send(self, message: EmailMessage) -> None: ...
