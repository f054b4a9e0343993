"""Keyset pages: the token that says where a walk goes on.

A walk is ordered by (cursor field, id), so no row is skipped or met twice when others come and go.
A token is opaque, versioned, and good only for the walk it was made for: same model, same order,
same filters, same scope.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import msgspec

from maniflex.errors import InvalidQuery
from maniflex.model.meta import FieldMeta
from maniflex.query.query import NOTHING, Cursor, Forced, Hiding, Query
from maniflex.query.values import parse_value

_VERSION = 1
_MALFORMED = "cursor: the token is not valid"
_STALE = "cursor: the token was not made for this list; start again with cursor="


class _Token(msgspec.Struct, array_like=True):
    version: int
    walk: str
    value: str
    id: str
    backwards: bool


def read(text: str, query: Query, *, paged: bool, hiding: Hiding = NOTHING) -> Cursor:
    """Where the walk stands; an empty token is its start."""
    field = _field(query, hiding)
    if paged:
        raise InvalidQuery("cursor: cannot be combined with page")
    if query.search is not None:
        raise InvalidQuery("cursor: cannot be combined with q")
    if any(s.field is not field or s.path for s in query.sorts) or len(query.sorts) > 1:
        raise InvalidQuery(
            f"cursor: the walk is ordered by {field.api}; it cannot be sorted by another field"
        )
    descending = bool(query.sorts) and query.sorts[0].descending
    walk = _walk(query, field, descending)
    if not text:
        return Cursor(field, descending, walk=walk)
    token = _decode(text)
    token_walk, _, scope = token.walk.partition(".")
    if token.version != _VERSION or token_walk != walk:
        raise InvalidQuery(_STALE)
    try:
        value = parse_value(token.value, field, "cursor", member=False)
    except InvalidQuery:
        raise InvalidQuery(_MALFORMED) from None
    return Cursor(field, descending, (value, token.id), token.backwards, walk, scope)


def require_same_scope(query: Query) -> None:
    """Refuse a token of another scope; the scope of a request is known only after its token is read."""
    at = query.cursor
    if at is not None and at.after is not None and at.scope != _scope(query):
        raise InvalidQuery(_STALE)


def write(query: Query, row_value: Any, row_id: str, *, backwards: bool) -> str:
    """The token that goes on after (or before) the row with these two values."""
    at = query.cursor
    assert at is not None
    text = row_value.isoformat() if hasattr(row_value, "isoformat") else str(row_value)
    scope = _scope(query)
    token = _Token(_VERSION, f"{at.walk}.{scope}" if scope else at.walk, text, row_id, backwards)
    return urlsafe_b64encode(msgspec.json.encode(token)).rstrip(b"=").decode()


def _field(query: Query, hiding: Hiding) -> FieldMeta:
    name = query.model.options.cursor_field
    field = query.model.field(name) if name else None
    # A token carries the value of the field, so who may not see it has no walk.
    if field is None or hiding.hides(field):
        raise InvalidQuery("cursor: not available on these records")
    return field


def _decode(text: str) -> _Token:
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        token = msgspec.json.decode(raw, type=_Token)
    except (ValueError, UnicodeError, msgspec.MsgspecError):
        raise InvalidQuery(_MALFORMED) from None
    if "\x00" in token.value or "\x00" in token.id:  # Postgres has no such text
        raise InvalidQuery(_MALFORMED)
    return token


def _walk(query: Query, field: FieldMeta, descending: bool) -> str:
    """What a token is bound to."""
    parts = (query.model.name, field.name, descending, repr([_filter_key(f) for f in query.filters]))
    return hashlib.blake2b(repr(parts).encode(), digest_size=9).hexdigest()


def _scope(query: Query) -> str:
    """What of the conditions on the listed rows a token is bound to; empty without any."""
    conditions = sorted(
        (c.name, c.op.value, repr(c.value))
        for c in query.forced
        if isinstance(c, Forced) and c.on(query.model) is not None
    )
    return hashlib.blake2b(repr(conditions).encode(), digest_size=9).hexdigest() if conditions else ""


def _filter_key(item: Any) -> Any:
    conditions = getattr(item, "conditions", None)
    if conditions is not None:
        return [_filter_key(c) for c in conditions]
    value = item.value.name if isinstance(item.value, FieldMeta) else item.value
    return ([r.name for r in item.path], item.field.name, item.op.value, repr(value))
