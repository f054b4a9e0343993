"""Keys that HashiCorp Vault keeps: its transit engine encrypts, decrypts and digests, and no key leaves it.

Values travel to Vault over HTTPS, with what they are bound to as associated data; a page is one question.
An envelope has the head of all envelopes and the text of Vault (`vault:v1:...`) behind it, so a key that
Vault rotates stays one key here. Digests stay those of the first version of their key, because others
would find nothing. No token, no value and no answer of Vault is in a text of this module.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import ssl
import threading
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec

from maniflex.encryption.envelope import CURRENT_VERSION, head_of, key_id_of, split
from maniflex.encryption.port import with_length
from maniflex.errors import (
    DeclarationError,
    DecryptionError,
    EncryptionError,
    EncryptionNotConfigured,
    Unavailable,
)

if TYPE_CHECKING:  # it loads much, and most servers ask nobody
    from http.client import HTTPConnection

_DIGEST_VERSION = 1
_DIGEST_SIZE = 32
_MOST_BYTES = 64 * 1024 * 1024  # of an answer
_MOST_CALLS = 8  # at a time
_AWAY = frozenset({429, 472, 473, 500, 502, 503, 504})  # busy, standby, sealed

_VAULT_TEXT = re.compile(r"vault:v[1-9]\d*:(.+)", re.ASCII)  # to Vault, v0 is v1

TokenSource = Callable[[], str | Awaitable[str]]


class VaultKeyProvider:
    """The keys of a transit engine, each under its own name.

    `token_source` is asked before every question, for tokens that expire. `current` and `index_key` are as
    those of the other providers.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        *,
        token_source: TokenSource | None = None,
        mount: str = "transit",
        namespace: str | None = None,
        timeout: timedelta | float = 10.0,
        index_key: str | None = None,
        current: Mapping[str, str] | None = None,
        ca_file: str | None = None,
        allow_insecure: bool = False,
    ) -> None:
        self._host = _VaultHost(address, allow_insecure, ca_file)
        if (token is None) == (token_source is None):
            raise DeclarationError("VaultKeyProvider: give token= or token_source=")
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        if seconds <= 0:
            raise DeclarationError("VaultKeyProvider: timeout must be more than nothing")
        self.index_key = index_key
        self._token = token
        self._token_source = token_source
        self._mount = quote(mount.strip("/"))
        self._namespace = namespace
        self._timeout = seconds
        self._current = dict(current or {})
        self._threads = ThreadPoolExecutor(_MOST_CALLS, "maniflex-vault")

    def __repr__(self) -> str:
        return f"<VaultKeyProvider {self._host.name}>"

    def current_key(self, key_id: str) -> str:
        """The key id under which a field that declares `key_id` is written now."""
        return self._current.get(key_id, key_id)

    def key_id_of(self, envelope: bytes) -> str:
        """The name of the key of an envelope."""
        return key_id_of(envelope)

    async def encrypt(self, key_id: str, plain: bytes, *, context: bytes) -> bytes:
        """An envelope of the value."""
        [envelope] = await self.encrypt_many(key_id, [(plain, context)])
        return envelope

    async def encrypt_many(self, key_id: str, values: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        """Envelopes of pairs of value and context, by one question."""
        name = self.current_key(key_id)
        head = head_of(name)
        batch = [
            {"plaintext": _text(plain), "associated_data": _text(_bound_to(head, context))}
            for plain, context in values
        ]
        results = await self._ask_many("encrypt", name, batch)
        return [head + _sealed_text(result, name) for result in results]

    async def decrypt(self, envelope: bytes, *, context: bytes) -> bytes:
        """The value of an envelope."""
        [value] = await self.decrypt_many([(envelope, context)])
        if isinstance(value, Exception):
            raise value
        return value

    async def decrypt_many(self, envelopes: Sequence[tuple[bytes, bytes]]) -> list[bytes | Exception]:
        """The values of pairs of envelope and context, by one question for each key among them."""
        values: list[bytes | Exception] = [DecryptionError()] * len(envelopes)
        batches: dict[str, list[tuple[int, dict[str, str]]]] = {}
        for place, (envelope, context) in enumerate(envelopes):
            try:
                head, body = split(envelope)
                item = {"ciphertext": _text_of_vault(body), **_association(head, context)}
                batches.setdefault(key_id_of(envelope), []).append((place, item))
            except DecryptionError as error:
                values[place] = error
        for key_id, items in batches.items():
            opened = await self._open_many(key_id, [item for _, item in items])
            for (place, _), value in zip(items, opened, strict=True):
                values[place] = value
        return values

    async def _open_many(self, key_id: str, batch: Sequence[Mapping[str, str]]) -> list[bytes | Exception]:
        try:
            results = await self._ask_many("decrypt", key_id, batch)
        except EncryptionNotConfigured as error:
            return [error] * len(batch)
        return [_opened_value(result, key_id) for result in results]

    async def hmac(self, key_id: str, data: bytes) -> bytes:
        """The digest of the data."""
        name = self.index_key or key_id
        body = {"input": _text(data), "algorithm": "sha2-256", "key_version": _DIGEST_VERSION}
        status, answer = await self._ask("POST", f"hmac/{quote(name, safe='')}", body)
        if status != 200:
            raise _refusal(status, name)
        digest = _bytes(str(answer.get("hmac", "")).rpartition(":")[2])
        if digest is None or len(digest) != _DIGEST_SIZE:
            raise EncryptionError(f"Vault gave no digest under the key {name!r}")
        return digest

    async def check(self, key_ids: Collection[str]) -> list[str]:
        """What is wrong with these keys, and with the index key; `Unavailable` where there is no answer."""
        problems = []
        for name in dict.fromkeys([*key_ids, *filter(None, [self.index_key])]):
            status, answer = await self._ask("GET", f"keys/{quote(name, safe='')}", None)
            if status == 404:
                problems.append(f"Vault has no key {name!r} in {self._mount}")
            elif status != 200:
                problems.append(
                    f"Vault refuses to tell of the key {name!r} ({status}): see the token's policy"
                )
            elif not _can_bind(answer):
                problems.append(
                    f"the key {name!r} of Vault has a type that binds no values; take aes256-gcm96"
                )
        return problems

    # -- asking

    async def _ask_many(
        self, verb: str, key_id: str, batch: Sequence[Mapping[str, str]]
    ) -> list[Mapping[str, Any]]:
        status, answer = await self._ask("POST", f"{verb}/{quote(key_id, safe='')}", {"batch_input": batch})
        results = answer.get("batch_results")
        if isinstance(results, list) and len(results) == len(batch) and status in (200, 400):
            return [one if isinstance(one, dict) else {} for one in results]
        if status == 400 and verb == "decrypt":  # of a batch of one, or of a key that does not open any
            if len(batch) == 1:
                return [{"error": "refused"}]
            return [one for item in batch for one in await self._ask_many(verb, key_id, [item])]
        raise _refusal(status, key_id)

    async def _ask(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        """Status and data of an answer; `Unavailable` where there is none in time."""
        token = await self._find_token()
        headers = {"X-Vault-Token": token, "X-Vault-Request": "true", "Content-Type": "application/json"}
        if self._namespace:
            headers["X-Vault-Namespace"] = self._namespace
        content = None if body is None else msgspec.json.encode(body)
        deadline = monotonic() + self._timeout
        work = (f"/v1/{self._mount}/{path}", method, content, headers, deadline)
        try:
            asked = asyncio.get_running_loop().run_in_executor(self._threads, self._host.ask, *work)
            status, text = await asyncio.wait_for(asked, self._timeout)
        except (OSError, TimeoutError) as error:
            raise self._unavailable(str(error) or type(error).__name__) from None
        if status in _AWAY:
            raise self._unavailable(f"it answers {status}")
        try:
            answer = msgspec.json.decode(text) if text else {}
        except msgspec.DecodeError:
            raise EncryptionError(f"{self._host.name} does not answer as Vault does ({status})") from None
        data = answer.get("data") if isinstance(answer, dict) else None
        return status, data if isinstance(data, dict) else {}

    def _unavailable(self, why: str) -> Unavailable:
        error = Unavailable()
        error.place = f"Vault at {self._host.name} ({why})"
        return error

    async def _find_token(self) -> str:
        token: Any = self._token
        if self._token_source is not None:
            token = self._token_source()
            if inspect.isawaitable(token):
                token = await token
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
            raise EncryptionError("the token for Vault is no text that a header can hold")
        return token


class _VaultHost:
    """Where Vault is, and a connection to it for each thread."""

    def __init__(self, address: str, allow_insecure: bool, ca_file: str | None) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise DeclarationError("VaultKeyProvider: the address is not like https://vault.example.com:8200")
        if parts.scheme == "http" and not allow_insecure:
            raise DeclarationError(
                "VaultKeyProvider: the address begins with http://, where anybody on the way reads values and"
                " token; say https://, or allow_insecure=True for a Vault of this machine"
            )
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._host, self._prefix = parts.hostname, parts.path.rstrip("/")
        self._port = parts.port or (80 if self._tls is None else 443)
        self.name = f"{self._host}:{self._port}"
        self._of_thread = threading.local()

    def ask(
        self, path: str, method: str, body: bytes | None, headers: Mapping[str, str], deadline: float
    ) -> tuple[int, bytes]:
        """Status and text of an answer; blocks until the deadline at most. Redirects are not followed."""
        used = getattr(self._of_thread, "connection", None)
        if used is not None:
            try:
                return self._ask(used, path, method, body, headers, deadline)
            except ConnectionError:  # Vault has closed it since; to ask twice does no harm
                pass
        fresh = self._of_thread.connection = self._connect(deadline)
        return self._ask(fresh, path, method, body, headers, deadline)

    def _connect(self, deadline: float) -> HTTPConnection:
        from http import client

        seconds = _seconds_left(deadline)
        if self._tls is None:
            return client.HTTPConnection(self._host, self._port, timeout=seconds)
        return client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._tls)

    def _ask(
        self,
        connection: HTTPConnection,
        path: str,
        method: str,
        body: bytes | None,
        headers: Mapping[str, str],
        deadline: float,
    ) -> tuple[int, bytes]:
        from http import client

        try:
            connection.timeout = _seconds_left(deadline)
            if connection.sock is not None:
                connection.sock.settimeout(connection.timeout)
            connection.request(method, self._prefix + path, body, dict(headers))
            response, text = connection.getresponse(), bytearray()
            while more := response.read1(1 << 16):
                text += more
                if len(text) > _MOST_BYTES:
                    raise OSError("the answer is too long")
                if connection.sock is not None:
                    connection.sock.settimeout(_seconds_left(deadline))
            response.close()  # so that the connection takes the next question
            return response.status, bytes(text)
        except BaseException as error:
            self._of_thread.connection = None
            connection.close()
            if isinstance(error, client.HTTPException) and not isinstance(error, OSError):
                raise OSError(type(error).__name__) from None
            raise


def _seconds_left(deadline: float) -> float:
    seconds = deadline - monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _bound_to(head: bytes, context: bytes) -> bytes:
    """What an envelope of version 3 is bound to, as with keys of this process."""
    return with_length(str(head[0]).encode()) + with_length(head[3:]) + context


def _association(head: bytes, context: bytes) -> dict[str, str]:
    """The associated data of an envelope; those of version 1 have none."""
    if head[0] == CURRENT_VERSION:
        return {"associated_data": _text(_bound_to(head, context))}
    return {"associated_data": _text(head)} if head[0] == 2 else {}


def _sealed_text(result: Mapping[str, Any], key_id: str) -> bytes:
    text = result.get("ciphertext")
    if not isinstance(text, str) or not text.startswith("vault:"):
        raise EncryptionError(f"Vault did not encrypt under the key {key_id!r}")
    return text.encode()


def _text_of_vault(body: bytes) -> str:
    """The text behind the head; spelt as Vault spells it, because other spellings would open too."""
    parts = _VAULT_TEXT.fullmatch(body.decode("ascii", errors="replace"))
    content = None if parts is None else _bytes(parts[1])
    if parts is None or content is None or parts[1] != _text(content):
        raise DecryptionError("it is no text of Vault")
    return parts[0]


def _opened_value(result: Mapping[str, Any], key_id: str) -> bytes | Exception:
    text = result.get("plaintext")
    value = None if result.get("error") or not isinstance(text, str) else _bytes(text)
    return DecryptionError(f"it was changed or moved (key {key_id!r})") if value is None else value


def _can_bind(answer: Mapping[str, Any]) -> bool:
    """Whether a key takes associated data, as far as Vault tells its type."""
    kind = answer.get("type")
    return not isinstance(kind, str) or kind.startswith(("aes", "chacha20"))


def _refusal(status: int, key_id: str) -> EncryptionError:
    if status == 404:
        return EncryptionNotConfigured(f"Vault has no key {key_id!r}")
    return EncryptionError(f"Vault refuses the key {key_id!r} ({status})")


def _text(content: bytes) -> str:
    return b64encode(content).decode()


def _bytes(text: str) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None
