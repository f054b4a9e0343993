"""`EmailMessage`: one mail as code writes it, checked when it is made, and as it goes out.

>>> message = EmailMessage("Ada <ada@example.com>", "Welcome", "Thanks for signing up.")
>>> message.recipients
('ada@example.com',)
>>> EmailMessage("ada", "Hello")
Traceback (most recent call last):
maniflex.errors.ValidationFailed: the mail cannot be sent: to.0: is no address
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage as MimeMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any

from maniflex.errors import ValidationFailed

Attachment = tuple[str, bytes, str]  # name, content, media type

MOST_BYTES = 20 * 1024 * 1024  # of texts and attachments together
MOST_RECIPIENTS = 1000
LONGEST_ADDRESS = 254
_LOCAL = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS = re.compile(rf"{_LOCAL}@{_LABEL}(?:\.{_LABEL})*")
_NAMED = re.compile(r"(?P<name>[^<>]*?)\s*<(?P<address>[^<>]+)>")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029\ud800-\udfff]")
_HEADER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,75}")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+")
# What stands in fields of its own, or is for mail servers to say.
_OWN_HEADERS = frozenset(
    {
        *("from", "to", "cc", "bcc", "sender", "reply-to", "subject", "date", "message-id"),
        *("return-path", "received", "mime-version"),
    }
)
_UNSAID = object()


@dataclass(frozen=True)
class EmailMessage:
    """One mail; `body` is another word for `text`. One that cannot be sent is `ValidationFailed` at once."""

    to: str | Sequence[str] = field(repr=False)
    subject: str = field(repr=False)
    text: str = field(default="", repr=False)
    html: str = field(default="", repr=False)
    body: InitVar[Any] = field(default=_UNSAID, kw_only=True)
    sender: str | None = field(default=None, repr=False, kw_only=True)
    cc: str | Sequence[str] = field(default=(), repr=False, kw_only=True)
    bcc: str | Sequence[str] = field(default=(), repr=False, kw_only=True)
    reply_to: str | None = field(default=None, repr=False, kw_only=True)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, kw_only=True)
    attachments: Sequence[Attachment] = field(default=(), repr=False, kw_only=True)
    # Of one that is on its way: the same in every attempt, and those that do not have it yet.
    id: str = field(default="", kw_only=True)
    date: datetime | None = field(default=None, kw_only=True)
    pending: tuple[str, ...] | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self, body: Any) -> None:
        if body is not _UNSAID:
            object.__setattr__(self, "text", body)
        for name in ("to", "cc", "bcc"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else _as_tuple(value))
        attachments = tuple(tuple(one) for one in self.attachments)
        object.__setattr__(self, "attachments", attachments)
        details = [{"field": name, "code": "mail", "message": problem} for name, problem in self._problems()]
        if details:
            name, problem = details[0]["field"], details[0]["message"]
            raise ValidationFailed(f"the mail cannot be sent: {name}: {problem}", details)

    def _problems(self) -> Iterator[tuple[str, str]]:
        for name in ("to", "cc", "bcc"):
            for place, text in enumerate(getattr(self, name)):
                if (problem := address_problem(text)) is not None:
                    yield f"{name}.{place}", problem
        for name in ("sender", "reply_to"):
            text = getattr(self, name)
            if text is not None and (problem := address_problem(text)) is not None:
                yield name, problem
        count = len(self.to) + len(self.cc) + len(self.bcc)
        if not 1 <= count <= MOST_RECIPIENTS:
            yield "to", f"names 1 to {MOST_RECIPIENTS} recipients, with cc and bcc"
        if (problem := _line_problem(self.subject)) is not None:
            yield "subject", problem
        yield from self._header_problems()
        yield from self._content_problems()

    def _header_problems(self) -> Iterator[tuple[str, str]]:
        for name, value in self.headers.items():
            lower = str(name).lower()
            if not _HEADER_NAME.fullmatch(lower) or lower in _OWN_HEADERS or lower.startswith("content-"):
                yield "headers", f"{name!r} is no header of one's own"
            elif (problem := _line_problem(value)) is not None:
                yield f"headers.{name}", problem

    def _content_problems(self) -> Iterator[tuple[str, str]]:
        size = 0
        for name in ("text", "html"):
            text = getattr(self, name)
            if not isinstance(text, str) or "\x00" in text or re.search("[\ud800-\udfff]", text):
                yield name, "is a text without NUL"
            else:
                size += len(text.encode())
        for place, one in enumerate(self.attachments):
            problem = _attachment_problem(one)
            if problem is not None:
                yield f"attachments.{place}", problem
            else:
                size += len(one[1])
        if size > MOST_BYTES:
            yield "attachments", f"a mail has at most {MOST_BYTES} bytes"

    @property
    def recipients(self) -> tuple[str, ...]:
        """The bare addresses that it still goes to, each once."""
        if self.pending is not None:
            return self.pending
        texts = (*self.to, *self.cc, *self.bcc)
        return tuple(dict.fromkeys(address_of(text).addr_spec for text in texts))

    def mime(self, sender: str) -> MimeMessage:
        """The mail as it goes over the wire, but for `bcc`; `sender` is for one that names none."""
        message = MimeMessage(policy=SMTP)
        own_sender = address_of(self.sender or sender)
        message["From"] = own_sender
        for name, texts in (("To", self.to), ("Cc", self.cc)):
            if texts:
                message[name] = [address_of(text) for text in texts]
        if self.reply_to is not None:
            message["Reply-To"] = address_of(self.reply_to)
        message["Subject"] = self.subject
        message["Date"] = format_datetime(self.date or datetime.now(UTC))
        if self.id:
            message["Message-ID"] = f"<{self.id}@{own_sender.domain}>"
        for name, value in self.headers.items():
            message[name] = value
        if self.text or not self.html:
            message.set_content(self.text)
        if self.html:
            (message.add_alternative if self.text else message.set_content)(self.html, subtype="html")
        for name, content, media_type in self.attachments:
            main, _, sub = media_type.partition("/")
            message.add_attachment(content, maintype=main, subtype=sub, filename=name)
        return message

    # -- as the outbox keeps it

    def as_payload(self) -> dict[str, Any]:
        """The mail as JSON."""
        return {
            **{name: list(getattr(self, name)) for name in ("to", "cc", "bcc")},
            **{name: getattr(self, name) for name in ("subject", "text", "html", "sender", "reply_to")},
            "headers": dict(self.headers),
            "attachments": [
                [name, base64.b64encode(content).decode(), kind] for name, content, kind in self.attachments
            ],
        }

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any], id: str, date: datetime) -> EmailMessage:
        """The mail of a message of the outbox."""
        names = ("to", "cc", "bcc", "subject", "text", "html", "sender", "reply_to", "headers")
        attachments = [
            (name, base64.b64decode(content), kind) for name, content, kind in payload["attachments"]
        ]
        message = cls(**{name: payload[name] for name in names}, attachments=attachments, id=id, date=date)
        return replace(message, pending=tuple(payload["pending"])) if "pending" in payload else message


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, Sequence) else (value,)


def address_of(text: str) -> Address:
    """The address in a text that was checked, which may stand behind a name: `Ada <ada@example.com>`."""
    match = _NAMED.fullmatch(text.strip())
    name, address = (match["name"].strip(' "'), match["address"]) if match else ("", text.strip())
    return Address(name, addr_spec=_ascii(address))


def _ascii(address: str) -> str:
    local, _, domain = address.rpartition("@")
    return address if domain.isascii() else f"{local}@{domain.encode('idna').decode()}"


def address_problem(text: Any) -> str | None:
    """Why a text is no address that mail can go to."""
    if not isinstance(text, str) or len(text) > 1000:
        return "is the address of a recipient"
    if _CONTROL.search(text):
        return "has a line break or another control character"
    match = _NAMED.fullmatch(text.strip())
    try:
        address = _ascii(match["address"] if match else text.strip())
    except UnicodeError:
        return "is no address"
    if len(address) > LONGEST_ADDRESS or _ADDRESS.fullmatch(address) is None:
        return "is no address"
    return None


def _line_problem(text: Any) -> str | None:
    if not isinstance(text, str):
        return "is a text"
    return "has a line break or another control character" if _CONTROL.search(text) else None


def _attachment_problem(one: Any) -> str | None:
    if len(one) != 3 or not isinstance(one[1], bytes) or not isinstance(one[2], str):
        return "is (name, bytes, media type)"
    if not one[0] or _line_problem(one[0]) is not None:
        return "its name is a text without line breaks"
    main = one[2].partition("/")[0].lower()
    if not _MEDIA_TYPE.fullmatch(one[2]) or main in ("multipart", "message"):
        return "its media type is one of a file, such as application/pdf"
    return None
