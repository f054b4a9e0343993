"""The tables of files, as internal models without routes: which files there are, and which records name them.

Their statements are in `files/sql`, where the states of a file are drawn.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.model.meta import Index, TableRules, is_one_of


class FileState(StrEnum):
    """Where a file is in its life; `common/files.sql` draws how one state follows from the other."""

    PENDING = "pending"
    STORED = "stored"
    LINKED = "linked"
    CONDEMNED = "condemned"


class StoredFile(Model, table="stored_file", headless=True):
    """A file: its key in the storage, its name, type, size and state, and who may name it."""

    __table_rules__: ClassVar = TableRules(
        checks={"stored_file_state_check": is_one_of("state", tuple(FileState))}
    )
    __omitted__: ClassVar = frozenset({"scope", "lease", "lease_until"})

    key: str = field(unique=True)
    state: FileState = field(default=FileState.PENDING)
    filename: str = field(default="")
    content_type: str = field(default="application/octet-stream")
    size: int | None = field(default=None)  # once all of it is stored
    sha256: str | None = field(default=None)  # unknown of files that went past the server
    etag: str = field(default="")
    acl: str = field(default="private")
    # Of the caller who minted the key; empty: anybody's.
    scope: str = field(default="", hidden=True, index=True)
    tenant_id: str | None = field(default=None, relation=None)
    actor_id: str | None = field(default=None, relation=None)
    expires_at: datetime | None = field(default=None)  # unless a record names it before
    # Of a presigned upload that counts against a quota: the bytes it may have, until they are seen.
    reserved: int | None = field(default=None)
    look_at: datetime | None = field(default=None)  # when it is seen whether it was uploaded
    # A client may still upload to the storage by itself, with a URL of this key; its row stays until then.
    open_until: datetime | None = field(default=None)
    was_linked: bool = field(default=False)  # a record has named it that names it no more
    lease: str | None = field(default=None, hidden=True)  # of the cleaner that removes it
    lease_until: datetime | None = field(default=None)  # not before, after a removal that failed
    attempts: int = field(default=0)  # to remove it, that failed


class FileLink(
    Model,
    table="file_link",
    headless=True,
    indices=[Index(("key", "model", "record_id", "field"), unique=True, name="file_link_once_idx")],
):
    """A record that names a file."""

    key: str
    model: str
    record_id: str = field(relation=None)
    field: str


class ManiflexSecret(Model, table="maniflex_secret", headless=True):
    """A secret that all processes of a server share; the id is its name."""

    value: str = field(default="", hidden=True)
