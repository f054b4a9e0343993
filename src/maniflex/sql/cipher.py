"""The encrypted fields of one model: sealed on their way into its table, opened on their way out.

An envelope is bound to the label of its field, `table.column`, and to the id of its record, so one that was
copied elsewhere does not open. A digest is bound to the label alone: equal values of one field have equal
digests. An empty text has none, so neither has a value that was cleared.
"""

from __future__ import annotations

import logging
from binascii import b2a_base64
from collections.abc import Callable, Container, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

from maniflex.encryption.envelope import (
    CURRENT_VERSION,
    PREFIX,
    from_text,
    is_sealed,
    key_id_of,
    read_base64,
    to_text,
)
from maniflex.encryption.keyring import Keyring
from maniflex.encryption.local import Open
from maniflex.encryption.port import context_of, with_length
from maniflex.errors import DecryptionError, EncryptionNotConfigured
from maniflex.model.meta import FieldMeta, ModelMeta

log = logging.getLogger("maniflex.encryption")

# The length of an id of the framework, as a context has it.
_USUAL_ID = 36
_USUAL_LENGTH = _USUAL_ID.to_bytes(4, "big")

Opener = Callable[[str, str], str | None]
PageOpener = Callable[[Sequence[Any], int, int], None]  # of rows, the place, and that of their ids
NO_KEYS = Keyring()  # of statements that are written without a server


class RowCipher:
    """What seals and opens the rows of one model."""

    def __init__(self, meta: ModelMeta, keys: Keyring) -> None:
        self.fields = {f.name: FieldCipher(meta, f, keys) for f in meta.fields if f.encrypted is not None}
        self._digests = {name: f"{name}$hmac" for name, one in self.fields.items() if one.field.has_digest}

    def seal(self, values: MutableMapping[str, Any], record_id: str | None) -> None:
        """Put envelopes in the place of values that are about to be written, and digests beside them.

        A new row brings its id along.
        """
        for name, one in self.fields.items():
            if name in values:
                value = values[name]
                if (digest := self._digests.get(name)) is not None:
                    values[digest] = None if value is None else one.digest(value)
                if value is not None:
                    values[name] = one.seal(value, values["id"] if record_id is None else record_id)

    def openers(self, fields: Sequence[FieldMeta], replaced: Container[str] = ()) -> list[tuple[int, Opener]]:
        """The places of encrypted fields in a row, each with what opens it; a replaced one may stay shut."""
        ciphers = self._places(fields)
        return [(i, c.open_if_possible if c.field.name in replaced else c.open) for i, c in ciphers]

    def page_openers(self, fields: Sequence[FieldMeta]) -> list[tuple[int, PageOpener]]:
        """The places of encrypted fields in a row, each with what opens its values of a whole page."""
        return [(place, cipher.open_all) for place, cipher in self._places(fields)]

    def _places(self, fields: Sequence[FieldMeta]) -> list[tuple[int, FieldCipher]]:
        return [(i, self.fields[f.name]) for i, f in enumerate(fields) if f.name in self.fields]

    def sealed_values(
        self, fields: Sequence[FieldMeta], rows: Iterable[Sequence[Any]]
    ) -> list[tuple[bytes, bytes]]:
        """The envelopes in rows of these fields, each with its context; those that are none are left out."""
        id_place = next(place for place, f in enumerate(fields) if f.name == "id")
        return sealed_values(self._places(fields), rows, id_place)

    def covers(self, names: Mapping[str, Any]) -> bool:
        """Whether these values are those of all encrypted fields."""
        return self.fields.keys() <= names.keys()


class FieldCipher:
    """What seals, opens and digests the values of one encrypted field."""

    def __init__(self, meta: ModelMeta, field: FieldMeta, keys: Keyring) -> None:
        assert field.encrypted is not None
        self.field = field
        self.key_id = field.encrypted
        self._model = meta.name
        self._keys = keys
        self.label = with_length(field.labels[0].encode())
        self._usual_context = self.label + _USUAL_LENGTH
        self._opened = keys.opened.of(self.label)
        self._remembers = keys.opened.most > 0
        # By the head of an envelope: what opens it, and what is associated before the id of a record.
        self._openers: dict[bytes, tuple[Open, bytes]] = {}

    def context(self, record_id: str) -> bytes:
        """What an envelope of this record is bound to."""
        encoded = record_id.encode()
        if len(encoded) == _USUAL_ID:
            return self._usual_context + encoded
        return self.label + with_length(encoded)

    def seal(self, value: str, record_id: str) -> str:
        """The text that is stored of a value."""
        return to_text(self._keys.seal_now(self.key_id, value.encode(), self.context(record_id)))

    def open(self, stored: str, record_id: str) -> str | None:
        """The value of a stored text; None where it does not open and settings say so."""
        value = self._opened.find(stored, record_id) if self._remembers else None
        return self._open(stored, record_id) if value is None else value

    def open_all(self, rows: Sequence[Any], place: int, id_place: int) -> None:
        """Open the values at this place of the rows of a page; what was opened lately takes no call."""
        find = self._opened.recent.get
        for values in rows:
            known = find(values[id_place])
            if known is not None and known[0] == values[place]:
                values[place] = known[1]
            elif values[place] is not None:
                values[place] = self.open(values[place], values[id_place])

    def _open(self, stored: str, record_id: str) -> str | None:
        try:
            if stored[:4] == PREFIX:
                envelope = read_base64(f'"{stored[4:]}"')
                end = 3 + envelope[2]
                nonce_end = end + 12
                encoded = record_id.encode()
                if (known := self._openers.get(envelope[:end])) is not None and len(encoded) == _USUAL_ID:
                    decrypt, head = known
                    content = decrypt(envelope[end:nonce_end], envelope[nonce_end:], head + encoded).decode()
                    if self._remembers:
                        self._opened.note(stored, record_id, content)
                    return content
        except Exception:  # whatever it is, it is found and told below
            pass
        return self._open_slowly(stored, record_id)

    def _open_slowly(self, stored: str, record_id: str) -> str | None:
        try:
            return self.open_strictly(stored, record_id)
        except DecryptionError as error:
            self._keys.failures += 1
            if self._keys.shows_null and self.field.nullable:
                log.error("%s; null is shown in its place", error)
                return None
            raise

    def open_if_possible(self, stored: str, record_id: str) -> str | None:
        """The value of a stored text, or None."""
        try:
            return self.open(stored, record_id)
        except DecryptionError:
            return None

    def _note_opener(self, envelope: bytes) -> None:
        """Open at once from now on what begins like this envelope, which has the label of today."""
        local = self._keys.local
        if local is not None and envelope[0] == CURRENT_VERSION:
            head, decrypt, data = local.bound_opener(envelope)
            self._openers[head] = (decrypt, data + self._usual_context)

    def open_strictly(self, stored: str, record_id: str) -> str:
        """The value of a stored text, by any name the field has had; an error names record, field and key."""
        try:
            if not is_sealed(stored):
                return self._read_plain(stored)
            return self._open_envelope(from_text(stored), record_id)
        except (DecryptionError, EncryptionNotConfigured) as error:
            is_damaged = isinstance(error, DecryptionError) or not self._names_own_key(stored)
            kind = DecryptionError if is_damaged else EncryptionNotConfigured
            problem = f"{self.field.name}: {error.problem}"
            raise kind(problem, model=self._model, record_id=record_id) from None

    def _names_own_key(self, stored: str) -> bool:
        """Whether the envelope names a key that is written with, and not one that nobody knows."""
        return key_id_of(from_text(stored)) in (self.key_id, self._keys.current_key(self.key_id))

    def _open_envelope(self, envelope: bytes, record_id: str) -> str:
        first: DecryptionError | None = None
        for label in self.field.labels:
            try:
                value = self._keys.open_now(envelope, context_of(label, record_id)).decode()
                if label == self.field.labels[0]:
                    self._note_opener(envelope)
                return value
            except UnicodeDecodeError:
                raise DecryptionError("it holds no text") from None
            except DecryptionError as error:
                first = first or error
        assert first is not None
        raise first

    def digest(self, value: str) -> str | None:
        """What a value is matched by; None for an empty text."""
        return digest_of(self.field, value, self._keys) or None

    def has_label_of_today(self, envelope: bytes, record_id: str) -> bool:
        """Whether an envelope is bound to the label that is written now."""
        try:
            self._keys.open_now(envelope, self.context(record_id))
        except DecryptionError:
            return False
        return True

    def _read_plain(self, stored: str) -> str:
        """A text from before the field was encrypted."""
        if not self._keys.takes_plain:
            raise DecryptionError("it is plain text, which encryption_legacy refuses")
        self._keys.plain_values += 1
        return stored


def sealed_values(
    ciphers: Sequence[tuple[int, FieldCipher]], rows: Iterable[Sequence[Any]], id_place: int
) -> list[tuple[bytes, bytes]]:
    """The envelopes at these places of rows, each with its context; those that are none are left out."""
    pairs = []
    for row in rows:
        for place, cipher in ciphers:
            stored = row[place]
            if stored is not None and is_sealed(stored):
                with suppress(DecryptionError):
                    pairs.append((from_text(stored), cipher.context(row[id_place])))
    return pairs


def digest_of(field: FieldMeta, value: str, keys: Keyring) -> str:
    """The digest of a value of an encrypted field; that of an empty text is empty, and no row has it."""
    if not value:
        return ""
    assert field.encrypted is not None
    normal = value.casefold() if field.blind_index == "casefold" else value
    data = with_length(field.labels[0].encode()) + normal.encode()
    return b2a_base64(keys.digest_now(field.encrypted, data), newline=False).decode()
