"""The tables of the SQL forms, as internal models without routes.

The id is the SHA-256 of a key, so that a row has the same size for every key and shows none. Moments are
nanoseconds since 1970 in plain integers: both databases add and compare them in the same words, and a
bucket of any size divides its window without rounding into another token. Rows whose `expires_at` has
passed count as absent and are removed by `background/expired_rows.py`.
"""

from __future__ import annotations

from typing import ClassVar

from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.model.meta import TableRules

# The statements name only what they mean; these two are filled by the database.
_STAMPED = TableRules(defaults=("created_at", "updated_at"))


class RateLimitRow(Model, table="rate_limit", headless=True):
    """One bucket: the moment at which it is full again says how many tokens it has."""

    __table_rules__: ClassVar = _STAMPED

    full_at: int
    granted: bool  # whether the last request got its tokens
    expires_at: int = field(index=True)  # rounded up, so that most requests change no index


class IdempotencyKeyRow(Model, table="idempotency_key", headless=True):
    """One key: claimed until `expires_at`, or settled with an answer that is kept until then."""

    __table_rules__: ClassVar = _STAMPED

    fingerprint: str
    token: str
    settled: bool
    answer: bytes | None = field(default=None)
    expires_at: int = field(index=True)


class RevokedTokenRow(Model, table="revoked_token", headless=True):
    """A token that was revoked."""

    __table_rules__: ClassVar = _STAMPED

    expires_at: int = field(index=True)


class RevokedUserRow(Model, table="revoked_user", headless=True):
    """A user whose tokens from before the cutoff are revoked."""

    __table_rules__: ClassVar = _STAMPED

    cutoff: int
    expires_at: int = field(index=True)


class CacheEntryRow(Model, table="cache_entry", headless=True):
    """A value or a number of a cache."""

    __table_rules__: ClassVar = _STAMPED

    value: bytes | None = field(default=None)
    number: int | None = field(default=None)
    expires_at: int | None = field(default=None, index=True)


class StoreRealmRow(Model, table="store_realm", headless=True):
    """One row: what tells the names of this database's servers from those of others in a store outside it."""

    __table_rules__: ClassVar = _STAMPED

    realm: str
