"""Writes the histories of versioned models: what follows from a change of a record is a version of it.

One row for each record that changed, all rows of a batch in one statement. A change that leaves every
value as it was has none; one that changes secrets alone has an empty diff. What fails here fails the
write. A record that was there before its history gets a version of the state that its first change found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from maniflex._caller import Caller, Source
from maniflex._ids import new_id
from maniflex.db.port import Row
from maniflex.db.redacted import Differences, Redaction, as_json
from maniflex.db.store import Store
from maniflex.db.write_seam import Change, ChangeKind, FollowUp, Statements
from maniflex.model.history_row import HistoryOperation
from maniflex.sql.bindings import BEFORE, THEN
from maniflex.sql.history import HistoryEntry, append
from maniflex.sql.statement import Sql
from maniflex.sql.unseen_delete import MOST_FIELDS, ToldFields, delete_with_version
from maniflex.sql.where import Scope

Diff = dict[str, dict[str, Any]]
_encode = msgspec.json.Encoder().encode
_NULL = {"old": None, "new": None}


class HistoryWriter(FollowUp):
    """Keeps the history of one model."""

    most_statements = 2

    def __init__(self, store: Store, history: Store, *, snapshots: bool) -> None:
        meta = store.meta
        marker = meta.soft_delete
        self._model = store.sql
        self._history = history
        self._snapshots = snapshots
        self._clock = store.clock
        self._redaction = Redaction(meta)
        self._differences = Differences(meta)
        self._moment = store.sql.names.index("updated_at")
        self._marker = None if marker is None else store.sql.names.index(marker.field)
        own_names = dict.fromkeys(place.own_name for place in history.sql.binding_places)
        self._own_places = [(name, store.sql.names.index(name)) for name in own_names]
        ciphers = {} if store.sql.cipher is None else store.sql.cipher.fields
        self._digests = {name: ciphers[name].digest for name in own_names if name in ciphers}
        self._told_of_delete = self._fields_told_of_delete()

    def follow(self, changes: Sequence[Change], who: Caller) -> Statements:
        """Add a version of every record that has really changed."""
        author = who.actor_id, who.tenant_id, who.request_id, who.reason
        for some in (changes,) if len(changes) == 1 else _by_beginning(changes):
            entries = [entry for change in some if (entry := self._entry(change)) is not None]
            if not entries:
                continue
            # As far as their records have a history or begin one; all of them do, or none.
            known = some[0].operation is not ChangeKind.CREATE
            rows = yield append(self._history.sql, entries, author, known=known)
            if len(rows) < len(entries):
                told_ids = {row[0] for row in rows}
                missing = {entry.record_id: entry for entry in entries if entry.record_id not in told_ids}
                entries = list(self._with_baselines(some, missing))
                yield append(self._history.sql, entries, author, known=False)

    def delete_unseen(
        self, record_id: str, stamps: Mapping[str, Any], scope: Scope, who: Caller
    ) -> Sequence[Sql]:
        """The delete and its version, whose JSON the database writes."""
        if self._told_of_delete is None:
            return ()
        history, moment = self._history.sql, stamps["updated_at"] if stamps else self._clock.now()
        return delete_with_version(
            self._model, history, self._told_of_delete, record_id, stamps, scope, moment, who
        )

    def _fields_told_of_delete(self) -> ToldFields | None:
        """The fields that the version of a delete has; None where the database cannot tell them.

        A statement takes so many, and the digest of a secret may have to be made here.
        """
        kept = [field for _, field in self._redaction.kept]
        if len(kept) > MOST_FIELDS or self._digests:
            return None
        return ToldFields(self._differences.fields, kept if self._snapshots else None)

    def _with_baselines(
        self, changes: Sequence[Change], missing: dict[str, HistoryEntry]
    ) -> Iterator[HistoryEntry]:
        """The entries of records that were there before their history, each behind the state it found."""
        for change in changes:
            entry = missing.get(change.id or "")
            if entry is None or change.before is None:
                continue
            if change.source is Source.ERASURE:  # the state before is what is being erased
                yield entry
                continue
            is_deleted = self._marker is not None and bool(change.before[self._marker])
            diff = {} if is_deleted else self._all_values(change.before, "new")
            moment = min(change.before[self._moment], entry.timestamp)
            yield self._make(change, str(HistoryOperation.BASELINE), diff, change.before, moment)
            yield entry._replace(id=new_id(), step=2)  # ids rise with the versions

    def _entry(self, change: Change) -> HistoryEntry | None:
        """The version that a change makes, if it makes one."""
        before, after = change.before, change.after
        match change.operation:
            case ChangeKind.CREATE | ChangeKind.RESTORE:
                assert after is not None
                diff, shown = self._all_values(after, "new"), after
            case ChangeKind.DELETE:
                assert before is not None
                diff, shown = self._all_values(before, "old"), before
            case ChangeKind.UPDATE:
                assert before is not None
                assert after is not None
                differences = self._differences.between(before, after)
                diff = {name: {"old": old, "new": new} for name, (old, new) in differences.items()}
                shown = after
                if not diff and all(before[i] == after[i] for i in self._redaction.dropped):
                    return None
        if change.source is Source.ERASURE:  # a difference would keep what is being erased
            diff = {}
        moment = self._clock.now() if after is None else after[self._moment]
        return self._make(change, str(change.operation), diff, shown, moment)

    def _make(self, change: Change, operation: str, diff: Diff, row: Row, moment: datetime) -> HistoryEntry:
        before = change.before if change.operation is ChangeKind.UPDATE else None
        return HistoryEntry(
            new_id(),
            change.id or "",
            1,
            operation,
            moment,
            str(change.source),
            _encode(diff).decode(),
            _encode(self._redaction(row)).decode() if self._snapshots else None,
            self._own_values(row, before or row) if self._own_places else None,
        )

    def _own_values(self, row: Row, before: Row) -> str:
        """What the record is bound by, in the version and in the state that it found."""
        values = {name: {THEN: row[place], BEFORE: before[place]} for name, place in self._own_places}
        for name, digest in self._digests.items():
            values[name] = {side: None if v is None else digest(v) for side, v in values[name].items()}
        return _encode(values).decode()

    def _all_values(self, row: Row, side: str) -> Diff:
        """The fields that have a value, all on one side."""
        diff: Diff = {}
        for place, name, is_json in self._differences.places:
            value = row[place]
            if value is not None:
                diff[name] = {**_NULL, side: as_json(value) if is_json else value}
        return diff


def _by_beginning(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """New records apart from those that were there."""
    new_records = [change for change in changes if change.operation is ChangeKind.CREATE]
    others = [change for change in changes if change.operation is not ChangeKind.CREATE]
    yield from (some for some in (new_records, others) if some)
