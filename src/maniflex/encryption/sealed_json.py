"""JSON texts of durable work as they are stored: plain, or sealed as a JSON text of one envelope.

A sealed value is the JSON string `"enc:…"`. A plain value that is such a string is written with its first
letter escaped, so the two are told apart by the stored text and never by what it means. What the engine keeps
for itself, and asks for in SQL, is an object `{"sealed": "enc:…"}`, which has what SQL asks for beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeGuard

import msgspec

from maniflex._json import UNREADABLE_KEY
from maniflex.encryption.envelope import from_text, is_sealed, key_id_of, to_text
from maniflex.encryption.keyring import Keyring
from maniflex.encryption.port import context_of
from maniflex.errors import DecryptionError, EncryptionNotConfigured

SHUT_KEY: Final = "$sealed"
DOES_NOT_OPEN = "it is encrypted, and does not open"
_STRING: Final = '"enc:'
_OBJECT: Final = '{"sealed":"enc:'
_OF_ENGINE: Final = "@"  # begins the names of steps that the engine keeps for itself
_ASKED_IN_SQL = ("status", "max_attempts")
_left_shut: ContextVar[bool] = ContextVar("_left_shut", default=False)


@contextmanager
def leaving_shut(leaves: bool = True) -> Iterator[None]:
    """A block in which rows show that a value is sealed, and not the value."""
    token = _left_shut.set(leaves)
    try:
        yield
    finally:
        _left_shut.reset(token)


def is_left_shut(value: Any) -> bool:
    """Whether this stands in the place of a value that was not opened."""
    return isinstance(value, dict) and value.keys() == {SHUT_KEY}


def key_id_in(stored: object) -> str | None:
    """The key id of a sealed JSON text; None of one that is not sealed."""
    if not isinstance(stored, str) or not stored.startswith(_STRING):
        return None
    try:
        return key_id_of(from_text(stored[1:-1]))
    except DecryptionError:
        return None


def is_sealed_json(stored: object) -> TypeGuard[str]:
    """Whether a stored JSON text is sealed, whether it opens or not."""
    return isinstance(stored, str) and stored.startswith(_STRING)


def as_plain(text: str) -> str:
    """A JSON text that is stored as it is, spelt so that it is not taken for a sealed one."""
    return '"\\u0065' + text[2:] if text.startswith(_STRING) else text


class WorkSealing:
    """Seals and opens what durable work stores, each bound to its `table.column` and the ids of its row."""

    def __init__(self, keys: Keyring) -> None:
        self.keys = keys

    async def keep(self, text: str, key_id: str | None, label: str, *ids: str) -> str:
        """A JSON text as it is stored: sealed under this key, or plain without one."""
        if key_id is None:
            return as_plain(text)
        return f'"{await self.keep_text(text, key_id, label, *ids)}"'

    async def keep_object(self, text: str, key_id: str | None, label: str, *ids: str) -> str:
        """An object of the engine, with the members that SQL asks for left in plain."""
        if key_id is None or not text.startswith("{"):
            return text
        members = msgspec.json.decode(text)
        asked = {name: members[name] for name in _ASKED_IN_SQL if name in members}
        sealed = await self.keep_text(text, key_id, label, *ids)
        return msgspec.json.encode({"sealed": sealed, **asked}).decode()

    async def keep_text(self, text: str, key_id: str, label: str, *ids: str) -> str:
        """A text as it is stored in a column of texts."""
        return to_text(await self.keys.seal(key_id, text.encode(), context_of(label, "/".join(ids))))

    async def open(self, stored: str | bytes, label: str, *ids: str) -> str | bytes:
        """The JSON text that was kept; one that is not sealed is given back as it is."""
        envelope = envelope_in(stored, ids)
        if envelope is None:
            return stored
        return (await self.keys.open(envelope, context_of(label, "/".join(ids)))).decode()

    async def open_text(self, stored: str | None, label: str, *ids: str) -> str | None:
        """The text that was kept in a column of texts; what does not open is said to be shut."""
        if stored is None or (envelope := _envelope_of_text(stored)) is None:
            return stored
        try:
            return (await self.keys.open(envelope, context_of(label, "/".join(ids)))).decode()
        except (DecryptionError, EncryptionNotConfigured):
            return DOES_NOT_OPEN


def envelope_in(stored: str | bytes, ids: Sequence[str]) -> bytes | None:
    """The envelope of a stored JSON text of the row of these ids; None of one that is not sealed."""
    start = stored[: len(_OBJECT)]
    beginning = start.decode(errors="replace") if isinstance(start, bytes) else start
    is_object = beginning == _OBJECT and ids[-1].startswith(_OF_ENGINE)
    if not is_object and not beginning.startswith(_STRING):
        return None
    text = stored.decode(errors="replace") if isinstance(stored, bytes) else stored
    if not is_object:
        return from_text(text[1:-1])
    try:
        return from_text(str(msgspec.json.decode(text)["sealed"]))
    except msgspec.MsgspecError:
        raise DecryptionError("it is no JSON") from None


def _envelope_of_text(stored: str) -> bytes | None:
    """The envelope that a text is; a text that only begins like one is none."""
    if not is_sealed(stored):
        return None
    try:
        envelope = from_text(stored)
        key_id_of(envelope)
    except DecryptionError:
        return None
    return envelope


class RowOpener:
    """Opens one column of stored rows of durable work as they are read."""

    def __init__(self, keys: Keyring, label: str, id_places: Sequence[int | None], *, is_json: bool) -> None:
        self._keys = keys
        self._label = label
        self._places = id_places
        self._is_json = is_json

    def __call__(self, stored: Any, row: Sequence[Any]) -> Any:
        """The value as if it had been stored plain, or what stands in its place."""
        if not isinstance(stored, str | bytes):
            return stored
        try:
            ids = [str(row[place]) for place in self._places if place is not None]
            envelope = envelope_in(stored, ids) if self._is_json else _envelope_of_text(str(stored))
            if envelope is None:
                return stored
            if _left_shut.get():
                return self._stand_in(SHUT_KEY, key_id_of(envelope))
            return self._keys.open_now(envelope, context_of(self._label, "/".join(ids))).decode()
        except (DecryptionError, EncryptionNotConfigured):
            return self._stand_in(UNREADABLE_KEY, DOES_NOT_OPEN)

    def _stand_in(self, name: str, content: str) -> str:
        return msgspec.json.encode({name: content}).decode() if self._is_json else f"({name} {content})"


def row_openers(
    keys: Keyring, table: str, sealed: Mapping[str, tuple[str, ...]], fields: Sequence[Any], json_kinds: Any
) -> list[tuple[int, RowOpener]]:
    """The places of columns that may be sealed among these fields, each with what opens it."""
    places = {item.name: place for place, item in enumerate(fields)}
    return [
        (
            places[name],
            RowOpener(
                keys,
                f"{table}.{name}",
                [places.get(one) for one in ids],
                is_json=fields[places[name]].kind in json_kinds,
            ),
        )
        for name, ids in sealed.items()
        if name in places
    ]
