"""Requests beside a read replica: who may read there, and how far it must have come for whom.

A request that may write (not `GET`, `HEAD` or `OPTIONS`) reads from the primary, and its answer says how far
the log of the primary was then (`X-Database-Position`, see `write_token`). A `GET` or `HEAD` with this
header, or with the cookie that was set along with it, is answered by a server that has got at least there. It
stands around applications that have a replica.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import MutableMapping
from typing import Any

from starlette.requests import cookie_parser

from maniflex.db.current import ReplicaReader, current_reader
from maniflex.db.postgres.replicated import Place, ReplicatedAdapter
from maniflex.errors import RequestError
from maniflex.pipeline.exchange import App, AsgiScope, Receive, Send

HEADER = b"x-database-position"
PRIMARY = "primary"  # a position that only the primary has
ASK_WITHIN = 2.0
LONGEST_COOKIE = 86_400  # seconds
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class ReadPositions:
    """The application, each of whose requests has a `ReplicaReader`."""

    def __init__(
        self, app: App, database: ReplicatedAdapter, *, cookie: str = "", max_lag: float = 0.0
    ) -> None:
        self._app = app
        self._database = database
        self._cookie = cookie
        # Beyond `max_lag` no replica is read from, so nobody needs the cookie for longer.
        self._cookie_seconds = int(max_lag) + 10 if max_lag else LONGEST_COOKIE

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_reading = scope["method"] in _READING
        reader = self._reader(scope) if is_reading else ReplicaReader(needs_primary=True)

        async def send_with_position(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                may_have_written = not is_reading and message["status"] < 400  # an answer may be told again
                if reader.has_written or may_have_written:
                    message = {**message, "headers": [*message.get("headers", ()), *await self._headers()]}
            await send(message)

        before = current_reader.set(reader)
        try:
            await self._app(scope, receive, send_with_position)
        finally:
            current_reader.reset(before)

    def _reader(self, scope: AsgiScope) -> ReplicaReader:
        texts = [value.decode("latin-1") for name, value in scope["headers"] if name == HEADER]
        if self._cookie:
            texts += _cookies(scope, self._cookie)
        if not texts:
            return ReplicaReader()
        places = {read_token(text.strip(), self._database.cluster_key) for text in texts}
        timelines = {place and place.timeline for place in places}
        if None in timelines or len(timelines) > 1:  # it may be anything, and the primary has it
            return ReplicaReader(needs_primary=True)
        timeline, position = max(place for place in places if place is not None)
        return ReplicaReader(position=position, timeline=timeline)

    async def _headers(self) -> list[tuple[bytes, bytes]]:
        try:
            async with asyncio.timeout(ASK_WITHIN):
                text = write_token(await self._database.position(), self._database.cluster_key)
        except (RequestError, TimeoutError):  # what was written is, whether we can say where or not
            text = PRIMARY
        headers = [(HEADER, text.encode())]
        if self._cookie:
            about = f"Max-Age={self._cookie_seconds}; Path=/; HttpOnly; SameSite=Lax"
            headers.append((b"set-cookie", f"{self._cookie}={text}; {about}".encode()))
        return headers


def _cookies(scope: AsgiScope, name: str) -> list[str]:
    texts = [value.decode("latin-1") for header, value in scope["headers"] if header == b"cookie"]
    cookies = [cookie_parser(text) for text in texts]
    return [values[name] for values in cookies if name in values]


# A place in the log of the primary as clients bring it: plain, and signed with a key that all processes of
# the database share, so that a client cannot make reads wait for a place that never comes.


_TOKEN = re.compile(r"([0-9a-f]{1,8})-([0-9a-f]{1,16})-([0-9a-f]{32})")


def write_token(place: Place, key: bytes) -> str:
    """The timeline, the position and their signature, in hexadecimal digits.

    >>> read_token(write_token(Place(1, 50331744), b"key"), b"key")
    Place(timeline=1, position=50331744)
    """
    text = f"{place.timeline:x}-{place.position:x}"
    return f"{text}-{hmac.digest(key, text.encode(), 'sha256').hex()[:32]}"


def read_token(text: str, key: bytes) -> Place | None:
    """The place; None for a text that is none.

    >>> read_token("soon", b"key")
    """
    parts = _TOKEN.fullmatch(text)
    if parts is None:
        return None
    place = Place(int(parts[1], 16), int(parts[2], 16))
    return place if hmac.compare_digest(write_token(place, key), text) else None
