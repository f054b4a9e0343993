"""Keys that signatures are checked with: how they are read, and which algorithms belong to each.

An algorithm belongs to the kind of key, never to the token: a public key checks no HMAC, an elliptic curve
fits one algorithm alone. The signature itself is checked by PyJWT.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from maniflex._clock import Clock
from maniflex.db.current import detached_context
from maniflex.errors import Abort
from maniflex.middleware.auth.authenticator import LOOPBACK
from maniflex.pipeline.context import Context

HMAC = ("HS256", "HS384", "HS512")
RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ALGORITHMS = frozenset({*HMAC, *RSA, *CURVES.values(), "EdDSA"})
SHORT_SECRET = 32  # bytes
RSA_SIZES = range(2048, 16384 + 1)  # bits; a larger one would take long to check
# Microseconds that checking one signature takes, by measurement; those of RSA grow with the key.
_COST = {"ES256": 90, "ES384": 530, "ES512": 520, "EdDSA": 230}
_PER_LETTER = 0.04


class BadKey(ValueError):
    """A text or object that no signature can be checked with; the message says why."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A key and the algorithms it may check."""

    key: Any
    algorithms: tuple[str, ...]
    cost: float  # microseconds

    def narrow_to(self, algorithms: Iterable[str]) -> VerifyingKey:
        """The same key, for those of its algorithms that are listed."""
        return VerifyingKey(self.key, tuple(a for a in self.algorithms if a in set(algorithms)), self.cost)


def missing_library(*, asymmetric: bool) -> str | None:
    """The package to install before tokens can be checked; None when all are there."""
    if find_spec("jwt") is None:
        return "PyJWT"
    return "cryptography" if asymmetric and find_spec("cryptography") is None else None


def secret_key(secret: Any) -> VerifyingKey:
    """The key of an HMAC secret."""
    key = secret.encode() if isinstance(secret, str) else secret
    if not isinstance(key, bytes):
        raise BadKey("a secret is text or bytes")
    if not key.strip():
        raise BadKey("the secret is empty, so anybody could sign")
    try:
        import_module("jwt.algorithms").HMACAlgorithm(None).prepare_key(key)
    except import_module("jwt").PyJWTError:
        raise BadKey("the secret is a key of another kind; give it as public_key") from None
    return VerifyingKey(key, HMAC, 30)


def read_public_key(source: Any) -> VerifyingKey:
    """A public key from a PEM text, a certificate or a key object."""
    key = _read_pem(source) if isinstance(source, str | bytes) else source
    if hasattr(key, "private_bytes"):
        raise BadKey("it is a private key; give its public half")
    return key_of(key)


def key_of(key: Any) -> VerifyingKey:
    """The key object with the algorithms of its kind."""
    asymmetric = "cryptography.hazmat.primitives.asymmetric"
    rsa, ec = import_module(f"{asymmetric}.rsa"), import_module(f"{asymmetric}.ec")
    edwards = (
        import_module(f"{asymmetric}.ed25519").Ed25519PublicKey,
        import_module(f"{asymmetric}.ed448").Ed448PublicKey,
    )
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size not in RSA_SIZES:
            raise BadKey(f"an RSA key has {RSA_SIZES[0]} to {RSA_SIZES[-1]} bits, not {key.key_size}")
        return VerifyingKey(key, RSA, 30 + 80 * (key.key_size / 4096) ** 2)
    if isinstance(key, ec.EllipticCurvePublicKey):
        algorithm = CURVES.get(key.curve.name)
        if algorithm is None:
            raise BadKey(f"no algorithm of JWT fits the curve {key.curve.name}")
        return VerifyingKey(key, (algorithm,), _COST[algorithm])
    if isinstance(key, edwards):
        return VerifyingKey(key, ("EdDSA",), _COST["EdDSA"])
    raise BadKey(f"a {type(key).__name__} is no public key of RSA, an elliptic curve or EdDSA")


def _read_pem(text: str | bytes) -> Any:
    content = text.encode() if isinstance(text, str) else text
    serialization = import_module("cryptography.hazmat.primitives.serialization")
    try:
        if b"BEGIN CERTIFICATE" in content:
            return import_module("cryptography.x509").load_pem_x509_certificate(content).public_key()
        if b"PRIVATE KEY" in content:
            raise BadKey("it is a private key; give its public half")
        return serialization.load_pem_public_key(content)
    except BadKey:
        raise
    except Exception:  # what is wrong with it would repeat the key
        raise BadKey("the text is no public key in PEM form") from None


def signing_key(source: Any) -> tuple[Any, VerifyingKey]:
    """A private key from a PEM text or a key object, and its public half."""
    key = source
    if isinstance(source, str | bytes):
        content = source.encode() if isinstance(source, str) else source
        serialization = import_module("cryptography.hazmat.primitives.serialization")
        try:
            key = serialization.load_pem_private_key(content, password=None)
        except Exception:
            raise BadKey("the text is no private key in PEM form without a password") from None
    if not hasattr(key, "private_bytes"):
        raise BadKey("private_key is not a private key")
    return key, key_of(key.public_key())


def cost_of(keys: Sequence[VerifyingKey], letters: int) -> float:
    """Microseconds that trying all keys on a token of that length takes."""
    return sum(key.cost + _PER_LETTER * letters for key in keys)


def verify(token: bytes, keys: Sequence[VerifyingKey]) -> dict[str, Any] | None:
    """The claims of a token that one of the keys has signed; None for any other text.

    Times, issuer and audience are not looked at here: a remembered token must be asked for them again.
    """
    jwt = import_module("jwt")
    for key in keys:
        try:
            claims = jwt.decode(token, key.key, algorithms=list(key.algorithms), options=_SIGNATURE_ONLY)
        except Exception:  # whatever a text does to the parser, it is no token of ours
            continue
        if isinstance(claims, dict):
            return claims
    return None


_SIGNATURE_ONLY = {
    "verify_signature": True,
    **dict.fromkeys(
        ("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss", "verify_sub", "verify_jti"),
        False,
    ),
}


# Keys that another server publishes: fetched when first needed, kept, and fetched again when they change.
#
# There is one fetch at a time, on a thread. A request whose key is known waits for one only when it is
# the first to find the keys older than their time, and then for a second at most.


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
        """Whether the keys are older than their lifetime, and no fetch was tried a moment ago."""
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


# The keys of an authenticator as its arguments give them, with every mistake in them.


def read_keys(
    owner: str, secret: Any, public_key: Any, algorithms: Iterable[str] | None, mistakes: list[str]
) -> tuple[VerifyingKey, ...]:
    """The keys to try, in order; mistakes in them are added to `mistakes`."""
    missing = missing_library(asymmetric=public_key is not None)
    if missing is not None:
        mistakes.append(library_mistake(owner, missing))
        return ()
    sources, read = (secret, secret_key) if public_key is None else (public_key, read_public_key)
    usable = list(_read_each(sources, read, mistakes))
    if not usable and not mistakes:
        mistakes.append("the list of keys is empty, so no token could be checked")
    return narrow(usable, algorithms, mistakes)


def library_mistake(owner: str, library: str) -> str:
    """What the start says when an optional library is not installed."""
    return f'{owner} needs {library}: pip install "maniflex[auth]"'


def _read_each(
    sources: Any, read: Callable[[Any], VerifyingKey], mistakes: list[str]
) -> Iterable[VerifyingKey]:
    for source in sources if isinstance(sources, list | tuple) else (sources,):
        try:
            yield read(source)
        except BadKey as error:
            mistakes.append(str(error))


def narrow(
    usable: list[VerifyingKey], algorithms: Iterable[str] | None, mistakes: list[str]
) -> tuple[VerifyingKey, ...]:
    """The keys for the algorithms that were names; each key must have one of them."""
    if algorithms is None:
        return tuple(usable)
    names = [algorithms] if isinstance(algorithms, str) else list(algorithms)
    unknown = [name for name in names if name not in ALGORITHMS]
    mistakes.extend(f"there is no algorithm {name!r}" for name in unknown)
    fitting_keys = tuple(key.narrow_to(names) for key in usable)
    if not unknown and any(not key.algorithms for key in fitting_keys):
        mistakes.append(f"none of the algorithms {', '.join(names)} belongs to the key")
    return fitting_keys
