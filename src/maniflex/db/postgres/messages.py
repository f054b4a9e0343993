"""Statements as messages of the wire protocol, to be sent in front of the driver's next statement.

The driver sends one statement and waits for its answer. What is written right before it, without a Sync of
its own, reaches the server in the same packet and is answered in the same turn: its completion is
overwritten by that of the driver's statement, and an error in it makes the server skip the rest. So such a
statement must return no rows, and it must raise where its outcome matters.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

Encode = Callable[[Any], bytes]
_EXECUTE = b"E" + struct.pack("!i", 9) + b"\0" + struct.pack("!i", 0)
_NULL = struct.pack("!i", -1)
# The binary forms of the types that a guard may have.
ENCODERS: dict[str, Encode] = {
    "text": str.encode,
    "varchar": str.encode,
    "bytea": bytes,
    "int8": struct.Struct("!q").pack,
}


def parse_message(name: str, text: str) -> bytes:
    """Prepare a statement without parameters under a name."""
    body = name.encode() + b"\0" + text.encode() + b"\0" + struct.pack("!h", 0)
    return b"P" + struct.pack("!i", len(body) + 4) + body


def execute_messages(name: str, encoders: Sequence[Encode] = (), params: Sequence[Any] = ()) -> bytes:
    """Bind a prepared statement to these values and run it."""
    parts = [b"\0", name.encode(), b"\0", struct.pack("!hhh", 1, 1, len(params))]  # all of them binary
    for encode, value in zip(encoders, params, strict=True):
        if value is None:
            parts.append(_NULL)
        else:
            data = encode(value)
            parts += (struct.pack("!i", len(data)), data)
    parts.append(struct.pack("!h", 0))
    body = b"".join(parts)
    return b"B" + struct.pack("!i", len(body) + 4) + body + _EXECUTE
