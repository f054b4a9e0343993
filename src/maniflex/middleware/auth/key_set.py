"""Keys that another server publishes: fetched when first needed, kept, and fetched again when they change.

There is one fetch at a time, on a thread. A request whose key is known waits for one only when it is the
first to find the keys older than their time, and then for a second at most.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from maniflex._clock import Clock
from maniflex.db.current import detached_context
from maniflex.errors import Abort
from maniflex.middleware.auth.keys import BadKey, VerifyingKey, key_of
from maniflex.middleware.auth.request import LOOPBACK
from maniflex.pipeline.context import Context

MOST_BYTES = 1024 * 1024
MOST_KEYS = 100
RETRY = 5.0  # seconds between fetches while no key is known at all
MOST_WAIT = 1.0  # seconds that a request waits for keys in the place of old ones
_PRIVATE = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth"})  # parts of a key that nobody should publish
_KINDS = {"RSA": "RSAAlgorithm", "EC": "ECAlgorithm", "OKP": "OKPAlgorithm"}


class KeySet:
    """The signing keys of one address, by key id."""

    def __init__(self, url: str, ttl: float, refetch_interval: float, timeout: float) -> None:
        self._url = url
        self._ttl = ttl
        self._refetch_interval = refetch_interval
        self._timeout = timeout
        self._keys: dict[str, VerifyingKey] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None  # any fetch
        self._refetched_at: float | None = None  # a fetch for the sake of an unknown id
        self._fetch: asyncio.Task[bool] | None = None
        self.on_change: Callable[[], object] = lambda: None  # a key is gone or another

    async def find(self, ctx: Context, key_id: str | None) -> VerifyingKey | None:
        """The key of that id; without an id the only one there is. 503 when no key is known at all."""
        clock = ctx.runtime.clock
        if not self._keys:
            await self._fetch_first(ctx, clock)
        key = self._key_of(key_id)
        if key is None and key_id is not None and self._may_refetch(clock):
            self._refetched_at = clock.monotonic()
            await asyncio.shield(self._start(ctx))
            key = self._key_of(key_id)
        return key

    async def replace_old_keys(self, ctx: Context) -> None:
        """Fetch the keys again when their time is over; one that takes long leaves the known ones."""
        if self.is_old(ctx.runtime.clock):
            await asyncio.wait({self._start(ctx)}, timeout=MOST_WAIT)

    def _key_of(self, key_id: str | None) -> VerifyingKey | None:
        if key_id is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(key_id)

    async def _fetch_first(self, ctx: Context, clock: Clock) -> None:
        if self._is_running() or self._tried_at is None or clock.monotonic() - self._tried_at >= RETRY:
            await asyncio.shield(self._start(ctx))
        if not self._keys:
            refusal = Abort(503, "JWKS_UNAVAILABLE", "the keys of the tokens cannot be fetched right now")
            refusal.retryable = True
            raise refusal

    def _may_refetch(self, clock: Clock) -> bool:
        """Whether an unknown id is worth a fetch: at most one in an interval for all requests together."""
        if self._refetched_at is None or self._is_running():
            return True
        return clock.monotonic() - self._refetched_at >= self._refetch_interval

    def is_old(self, clock: Clock) -> bool:
        """Whether the keys are older than their time, and nobody has tried to replace them just now."""
        now = clock.monotonic()
        is_old = self._fetched_at is not None and now - self._fetched_at >= self._ttl
        return is_old and (self._tried_at is None or now - self._tried_at >= min(self._ttl, RETRY))

    # -- fetching ------------------------------------------------------------------------------

    def _is_running(self) -> bool:
        fetch = self._fetch
        return fetch is not None and not fetch.done() and fetch.get_loop() is asyncio.get_running_loop()

    def _start(self, ctx: Context) -> asyncio.Task[bool]:
        """The fetch that is under way, or a new one; it outlives the request that needed it."""
        if self._fetch is None or not self._is_running():
            self._tried_at = ctx.runtime.clock.monotonic()
            self._fetch = asyncio.create_task(self._refresh(ctx), context=detached_context())
        return self._fetch

    async def _refresh(self, ctx: Context) -> bool:
        """Fetch the keys; a failure is logged and leaves those that are known."""
        runtime = ctx.runtime
        try:
            content = await runtime.threads.run(fetch, self._url, self._timeout)
            keys = await runtime.threads.run(read_key_set, content)
        except Exception as error:
            runtime.logger.warning("the key set %s could not be fetched: %s", self._url, error)
            return False
        if not keys:  # all were taken back: the known ones count no longer
            runtime.logger.warning(
                "the key set %s holds no key that signatures can be checked with", self._url
            )
        is_changed = any(keys.get(key_id) != key for key_id, key in self._keys.items())
        self._keys, self._fetched_at = keys, runtime.clock.monotonic()
        if is_changed:
            self.on_change()
        return True


def address_problem(url: str) -> str | None:
    """Why keys are not fetched from there; None when they can be."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return "url is no address"
    if parts.scheme not in ("https", "http") or not host:
        return "url is written https://…"
    if parts.scheme == "http" and host not in LOOPBACK:
        return "url must be https: keys that came by http could be anybody's"
    return None


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **more: Any) -> None:
        return None


def fetch(url: str, timeout: float) -> bytes:
    """What the address answers, of at most a megabyte, within the time; redirects are not followed."""
    deadline = time.monotonic() + timeout
    request = Request(url, headers={"Accept": "application/json", "User-Agent": "maniflex"})
    parts: list[bytes] = []
    size = 0
    with build_opener(_NoRedirects).open(request, timeout=timeout) as answer:
        while part := answer.read1(65536):
            size += len(part)
            if size > MOST_BYTES:
                raise ValueError(f"the answer has more than {MOST_BYTES} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError("the answer took too long")
            parts.append(part)
    return b"".join(parts)


def read_key_set(content: bytes) -> dict[str, VerifyingKey]:
    """The public signing keys of a JSON Web Key Set, by id; keys of other kinds are left out."""
    document = json.loads(content)
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it is no key set")
    return dict(_usable(entries[:MOST_KEYS]))


def _usable(entries: list[Any]) -> Iterator[tuple[str, VerifyingKey]]:
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or entry.get("kty") not in _KINDS or not _is_for_signatures(entry):
            continue
        try:
            key = _read(entry)
        except Exception:  # a key that cannot be read is one the others do not depend on
            continue
        if key.algorithms:
            yield str(entry.get("kid", f"#{number}")), key


def _is_for_signatures(entry: Mapping[str, Any]) -> bool:
    operations = entry.get("key_ops", ["verify"])
    return entry.get("use", "sig") == "sig" and isinstance(operations, list) and "verify" in operations


def _read(entry: Mapping[str, Any]) -> VerifyingKey:
    public = {name: value for name, value in entry.items() if name not in _PRIVATE}
    reader = getattr(import_module("jwt.algorithms"), _KINDS[entry["kty"]])
    key = key_of(reader.from_jwk(public))
    algorithm = entry.get("alg")
    if algorithm is None:
        return key
    if not isinstance(algorithm, str):
        raise BadKey("its algorithm is no text")
    return key.narrow_to([algorithm])
