"""How an encrypted value is stored: `enc:` and the base64 of its envelope.

An envelope is `version(1) | length of the key id (2, big-endian) | key id | body`. The body of local keys
is `nonce(12) | AES-256-GCM ciphertext and tag`; that of a service is the service's own text. Version 3 is
what is written: bound to version, key id and context. Version 2 is bound to its own head, version 1 to
nothing.
"""

from __future__ import annotations

from binascii import b2a_base64

import msgspec

from maniflex.errors import DecryptionError

PREFIX = "enc:"
CURRENT_VERSION = 3
VERSIONS = (1, 2, 3)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_LONGEST_KEY_ID = 0xFFFF
# Of a JSON text; a third of the time that binascii takes.
read_base64 = msgspec.json.Decoder(bytes).decode


def head_of(key_id: str, version: int = CURRENT_VERSION) -> bytes:
    """The beginning of every envelope of this key and version.

    >>> head_of("pii")
    b'\\x03\\x00\\x03pii'
    """
    name = key_id.encode()
    if not 0 < len(name) <= _LONGEST_KEY_ID:
        raise ValueError("a key id has between 1 and 65535 bytes")
    return bytes((version,)) + len(name).to_bytes(2, "big") + name


def split(envelope: bytes) -> tuple[bytes, bytes]:
    """Head and body of an envelope."""
    if len(envelope) < 4 or envelope[0] not in VERSIONS:
        raise DecryptionError("it is no envelope of a known version")
    end = 3 + (envelope[1] << 8 | envelope[2])
    if end == 3 or len(envelope) <= end:
        raise DecryptionError("the envelope is cut off")
    return envelope[:end], envelope[end:]


def version_of(envelope: bytes) -> int:
    """The version of an envelope."""
    split(envelope)
    return envelope[0]


def key_id_of(envelope: bytes) -> str:
    """The name of the key of an envelope."""
    head, _ = split(envelope)
    try:
        return head[3:].decode()
    except UnicodeDecodeError:
        raise DecryptionError("the key id is no text") from None


def is_sealed(stored: str) -> bool:
    """Whether a stored text is an envelope, and not a plain text of the time before encryption."""
    return stored[:4] == PREFIX


def to_text(envelope: bytes) -> str:
    """The envelope as it is stored."""
    return PREFIX + b2a_base64(envelope, newline=False).decode()


def text_beginnings(head: bytes) -> tuple[str, str]:
    """How the stored texts of this head begin: what they have in common, and the letters that may follow.

    The letter behind the common part holds bits of the head and bits of what follows the head; no letters
    mean that there is no such letter.

    >>> text_beginnings(head_of("abc"))
    ('enc:AwADYWJj', '')
    >>> text_beginnings(head_of("ab"))
    ('enc:AwACYW', 'IJKL')
    """
    whole, rest = divmod(len(head) * 8, 6)
    lowest = b2a_base64(head + bytes(3), newline=False).decode()
    if not rest:
        return PREFIX + lowest[:whole], ""
    first = _LETTERS.index(lowest[whole])
    return PREFIX + lowest[:whole], _LETTERS[first : first + (1 << 6 - rest)]


def from_text(stored: str) -> bytes:
    """The envelope of a stored text."""
    try:
        return read_base64(f'"{stored[4:]}"')
    except (msgspec.MsgspecError, UnicodeEncodeError):
        raise DecryptionError("it is not base64") from None
