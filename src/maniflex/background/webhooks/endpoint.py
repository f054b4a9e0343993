"""Endpoints as values: what code declares, or what a row holds, and what may be wrong with either.

Headers and secrets are in no `repr`, no message and no log line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from maniflex._json import encode_plain
from maniflex._outbound import address_problem, url_problem
from maniflex._webhook_signatures import PRIVATE_KEY, Signer, signing_key
from maniflex.background.declaring import as_duration, duration_problems, switch_problems
from maniflex.background.webhooks.model import BodyFormat, Ordering, Signing
from maniflex.errors import DeclarationError
from maniflex.events.event import CONTROL
from maniflex.events.patterns import read_patterns

TIMEOUT = 15  # seconds, unless said otherwise
LONGEST_TIMEOUT = 30
MOST_PATTERNS = 50
MOST_HEADERS, MOST_HEADER_BYTES = 20, 4096
OF_ENTRY = f"{CONTROL}webhook."  # begins the types of events that a service.webhook makes for itself
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")
_OURS = frozenset(
    (
        *("host", "content-type", "content-length", "content-encoding", "transfer-encoding", "connection"),
        *("te", "trailer", "upgrade", "expect", "user-agent", "traceparent", "tracestate", "accept-encoding"),
        *("keep-alive", "proxy-connection", "proxy-authorization", "x-webhook-signature"),
    )
)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where deliveries go, and how they are written and signed."""

    id: str
    url: str
    patterns: tuple[str, ...] = ("*",)
    description: str | None = None
    format: BodyFormat = BodyFormat.STANDARD
    ordering: Ordering = Ordering.RECORD
    signing: Signing = Signing.HMAC
    timeout: float = TIMEOUT
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)  # the newest first; none: unsigned
    legacy_signature: bool = False
    allow_private: bool = False
    actor_id: str | None = None
    tenant_id: str | None = None
    is_declared: bool = True

    @property
    def keys(self) -> list[Signer]:
        """What deliveries are signed with."""
        return [signing_key(secret) for secret in self.secrets]


def id_of(url: str, name: str) -> str:
    """The id of an endpoint of code: the same in every process, whatever else it says by and by."""
    return hashlib.sha256(encode_plain([url, name]).encode()).hexdigest()[:32]


def declare_endpoint(
    url: Any,
    patterns: Sequence[Any],
    secret: Any,
    *,
    name: str,
    timeout: Any,
    headers: Any,
    format: Any,
    ordering: Any,
    signing: Any,
    legacy_signature: Any,
    allow_private: Any,
    description: str | None = None,
) -> tuple[Destination | None, list[str]]:
    """The endpoint that code declares, or what is wrong with it."""
    problems = [
        *_url_problems(url, allow_private is True),
        *_word_problems(
            format=(format, BodyFormat), ordering=(ordering, Ordering), signing=(signing, Signing)
        ),
        *duration_problems(timeout=timeout),
        *switch_problems(legacy_signature=legacy_signature, allow_private=allow_private),
        *(text for _, text in header_problems({} if headers is None else headers)),
    ]
    problems += _secret_problems(secret, signing, legacy_signature is True)
    if problems:
        return None, problems
    seconds = as_duration(timeout, "timeout").total_seconds()
    endpoint = Destination(
        id_of(url, name),
        url,
        tuple(patterns),
        description,
        BodyFormat(format),
        Ordering(ordering),
        Signing(signing),
        seconds,
        dict(headers or {}),
        () if secret is None else (secret,),
        legacy_signature,
        allow_private,
    )
    return endpoint, []


def _url_problems(url: Any, allow_private: bool) -> Iterator[str]:
    if not isinstance(url, str):
        yield "url is a text such as https://example.com/hooks"
    elif problem := url_problem(url):
        yield f"url: {problem}"
    elif not allow_private and (problem := address_problem(url)):
        yield f"url: {problem}; allow_private=True says that it is meant"


def _word_problems(**words: tuple[Any, Any]) -> Iterator[str]:
    for name, (value, kind) in words.items():
        if value not in tuple(kind):
            yield f"{name}={value!r} is none of {', '.join(kind)}"


def _secret_problems(secret: Any, signing: Any, legacy: bool) -> Iterator[str]:
    if secret is None:
        if signing == Signing.ED25519 or legacy:
            yield "secret=None says unsigned, so there is nothing to sign with"
        return
    if not isinstance(secret, str) or not secret:
        yield "secret is a text such as whsec_…; secret=None says that nothing is signed"
        return
    if secret.startswith(PRIVATE_KEY) != (signing == Signing.ED25519):
        yield f"secret: a private key ({PRIVATE_KEY}…) is for signing='ed25519', any other secret for 'hmac'"
        return
    try:
        signing_key(secret)
    except (ValueError, DeclarationError) as problem:
        yield f"secret: {problem}"


def header_problems(headers: Any) -> list[tuple[str, str]]:
    """What is wrong with headers of one's own: the name of each, and a sentence that has no value in it."""
    if not isinstance(headers, Mapping) or not all(
        isinstance(name, str) and isinstance(value, str) for name, value in headers.items()
    ):
        return [("headers", "headers are texts by names")]
    problems = []
    size = sum(len(name) + len(value) for name, value in headers.items())
    if len(headers) > MOST_HEADERS or size > MOST_HEADER_BYTES:
        problems.append(
            ("headers", f"there are at most {MOST_HEADERS} headers, of {MOST_HEADER_BYTES} bytes")
        )
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            problems.append(("headers", f"{name[:40]!r} is not the name of a header"))
        elif name.lower() in _OURS or name.lower().startswith(("webhook-", "ce-")):
            problems.append((f"headers.{name}", f"the header {name} is written by the server"))
        elif not _HEADER_VALUE.fullmatch(value):
            problems.append(
                (f"headers.{name}", f"the value of {name} has characters other than visible ASCII")
            )
    if len({name.lower() for name in headers}) != len(headers):
        problems.append(("headers", "a header is there twice"))
    return problems


def pattern_problems(patterns: Any) -> list[str]:
    """What is wrong with the patterns of an endpoint."""
    if not isinstance(patterns, list | tuple) or not patterns:
        return ["it names no pattern, such as 'order.*'"]
    if len(patterns) > MOST_PATTERNS:
        return [f"there are at most {MOST_PATTERNS} patterns"]
    return read_patterns(tuple(patterns))[1]
