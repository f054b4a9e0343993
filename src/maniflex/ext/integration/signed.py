"""Whether a webhook that came is signed, and what it is about: the three schemes of `WebhookReceiver`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple

from msgspec import MsgspecError

from maniflex._json import decode
from maniflex._webhook_signatures import ALGORITHMS, Verifier, checking_key, is_hex_digest, is_signed
from maniflex.errors import InvalidBody
from maniflex.middleware.arguments import is_text

Header = Callable[[str], str]  # the value by the name, or an empty text
_LARGEST_SECONDS = 10**11  # what is more was not meant as seconds


class NotSigned(Exception):
    """The signature is missing, wrong, stale or of the future; who sent it is not told which."""


class Signed(NamedTuple):
    """What a signed webhook is about."""

    event: str
    id: str
    marks: tuple[str, ...]  # by which a second one like it is told, the id first


class Scheme:
    """One way to sign webhooks."""

    def read(self, header: Header, body: bytes, now: datetime, tolerance: timedelta) -> Signed:
        """What the webhook is about; `NotSigned` unless it is signed and fresh."""
        raise NotImplementedError

    @property
    def headers(self) -> Sequence[str]:
        """The headers it reads, for the description."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class HexScheme(Scheme):
    """`hmac`: the hex digest of the body, or of `timestamp.body`, in one header."""

    secrets: Sequence[bytes]
    algorithm: str
    header: str
    event_header: str
    id_header: str
    timestamp_header: str | None

    def read(self, header: Header, body: bytes, now: datetime, tolerance: timedelta) -> Signed:
        signature, content = header(self.header), body
        if self.timestamp_header is not None:
            timestamp = header(self.timestamp_header)
            content = f"{timestamp}.".encode() + body
        if not is_hex_digest(self.secrets, content, signature, self.algorithm):
            raise NotSigned
        if self.timestamp_header is not None:
            check_fresh(timestamp, now, tolerance)
        digest = sha256(content).hexdigest()
        id = header(self.id_header) or digest
        # The id is not signed: who repeats a webhook could give it another. What has a time comes once.
        marks = (id,) if self.timestamp_header is None else tuple(dict.fromkeys((id, digest)))
        return Signed(header(self.event_header), id, marks)

    @property
    def headers(self) -> Sequence[str]:
        times = [self.timestamp_header] if self.timestamp_header is not None else []
        return [self.header, self.event_header, self.id_header, *times]


@dataclass(frozen=True, slots=True)
class StandardScheme(Scheme):
    """`standard`: Standard Webhooks 1.0, by secrets and public keys."""

    keys: Sequence[Verifier]

    def read(self, header: Header, body: bytes, now: datetime, tolerance: timedelta) -> Signed:
        id, timestamp = header("webhook-id"), header("webhook-timestamp")
        if not id or not is_signed(self.keys, id, timestamp, body, header("webhook-signature")):
            raise NotSigned
        check_fresh(timestamp, now, tolerance)
        return Signed(_text_of(_object(body), "type"), id, (id,))

    @property
    def headers(self) -> Sequence[str]:
        return ["webhook-id", "webhook-timestamp", "webhook-signature"]


@dataclass(frozen=True, slots=True)
class StripeScheme(Scheme):
    """`stripe`: `t=…,v1=…` in one header, over `timestamp.body`."""

    secrets: Sequence[bytes]
    header: str

    def read(self, header: Header, body: bytes, now: datetime, tolerance: timedelta) -> Signed:
        parts = [part.strip().partition("=") for part in header(self.header).split(",", 20)]
        timestamp = next((value for name, _, value in parts if name == "t"), "")
        content = f"{timestamp}.".encode() + body
        fits = [is_hex_digest(self.secrets, content, value) for name, _, value in parts if name == "v1"]
        if not any(fits):
            raise NotSigned
        check_fresh(timestamp, now, tolerance)
        event = _object(body)
        id = _text_of(event, "id") or sha256(content).hexdigest()
        return Signed(_text_of(event, "type"), id, (id,))

    @property
    def headers(self) -> Sequence[str]:
        return [self.header]


def check_fresh(timestamp: str, now: datetime, tolerance: timedelta) -> None:
    """Refuse a time that is further away than the tolerance, before or after."""
    moment = _moment(timestamp)
    if moment is None or abs(now - moment) > tolerance:
        raise NotSigned


def _moment(text: str) -> datetime | None:
    """Unix seconds or RFC 3339, as a moment."""
    if text.isascii() and text.isdigit() and len(text) <= 11:
        seconds = int(text)
        return datetime.fromtimestamp(seconds, UTC) if seconds < _LARGEST_SECONDS else None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        value = decode(body)
    except (MsgspecError, ValueError, RecursionError):
        raise InvalidBody("the body is not valid JSON") from None
    return value if isinstance(value, Mapping) else {}


def _text_of(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name)
    return text if isinstance(text, str) else ""


# From the arguments of a receiver.


@dataclass(frozen=True, slots=True)
class SchemeOptions:
    """The arguments of a receiver that its scheme is made of."""

    secrets: Sequence[str]
    scheme: str
    algorithm: str
    header: str
    event_header: str
    id_header: str
    timestamp_header: str | None

    def problems(self) -> list[str]:
        """What no scheme can be made of."""
        problems = []
        if self.scheme not in ("hmac", "standard", "stripe"):
            problems.append(f"scheme is 'hmac', 'standard' or 'stripe', not {self.scheme!r}")
        if self.algorithm not in ALGORITHMS:
            problems.append(f"algorithm is one of {', '.join(ALGORITHMS)}, not {self.algorithm!r}")
        names = [self.header, self.event_header, self.id_header]
        if not all(map(is_text, names)) or self.timestamp_header == "":
            problems.append("the names of headers are texts that are not empty")
        if not self.secrets or not all(map(is_text, self.secrets)):
            problems.append("secret is a text that is not empty, or several of them")
        elif self.scheme == "standard":
            problems += [problem for one in self.secrets if (problem := _key_problem(one))]
        return problems

    def make(self) -> Scheme:
        """The scheme; only after `problems` has none."""
        secrets = [secret.encode() for secret in self.secrets]
        match self.scheme:
            case "standard":
                return StandardScheme([checking_key(secret) for secret in self.secrets])
            case "stripe":
                return StripeScheme(
                    secrets, "Stripe-Signature" if self.header == DEFAULT_HEADER else self.header
                )
        return HexScheme(
            secrets,
            self.algorithm,
            self.header,
            self.event_header,
            self.id_header,
            self.timestamp_header,
        )


DEFAULT_HEADER = "X-Hub-Signature-256"


def _key_problem(secret: str) -> str | None:
    try:
        checking_key(secret)
    except ValueError as error:
        return f"secret: {error}"
    return None
