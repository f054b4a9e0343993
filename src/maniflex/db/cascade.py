"""Deletes that reach further: what `on_delete` says about the records that refer to a deleted one.

The only home of cascades. All of it happens in the transaction of the delete, batch by batch, so a
million children are never in memory at once. A row goes before the rows that refer to it, which is
what ends a circle. A reference that restricts is looked at again at the end: only a record that
would stay behind can refuse. A row that is marked as deleted counts as deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from maniflex._caller import Source, caller
from maniflex.db import write_seam
from maniflex.db.current import transaction
from maniflex.db.port import Tx
from maniflex.db.references import StoresByModel
from maniflex.db.unchanged import changed_rows, has_read, mark_changed, refuse_changed
from maniflex.db.write_seam import ChangeKind
from maniflex.errors import DeleteRestricted
from maniflex.model.meta import ModelMeta, OnDelete, RelationKind
from maniflex.sql import cascade as sql
from maniflex.sql.where import Scope

if TYPE_CHECKING:
    from maniflex.db.store import Store


# The children still there are looked up anew for each batch, so small batches would make many slow.
BATCH = 20_000
_ALL = 2**31 - 1

NoteAlong = Callable[["Store", Sequence[str]], None]  # of records that go along with a delete


@dataclass(frozen=True, slots=True, eq=False)
class ReferringKey:
    """A key of another model (or our own) that refers to us, and what becomes of it."""

    store: Store
    key: str
    action: OnDelete
    implicit: bool = False  # a bare junction's key that says nothing: its row ties a record that is gone


def links_to(store: Store, stores_by_model: StoresByModel) -> tuple[ReferringKey, ...]:
    """Every reference to this model that a delete has to look after."""
    junctions = _junctions(stores_by_model)
    links = []
    for other in stores_by_model.values():
        if other.adapter is not store.adapter or other.meta.options.query is not None:
            continue
        for relation in other.meta.relations.values():
            if relation.kind is not RelationKind.BELONGS_TO or relation.target != store.meta.name:
                continue
            key = relation.key or ""
            if relation.on_delete is not OnDelete.NO_ACTION:
                links.append(ReferringKey(other, key, relation.on_delete))
            elif key in junctions.get(other.meta.name, ()) and not _own_fields(other, junctions):
                links.append(ReferringKey(other, key, OnDelete.CASCADE, implicit=True))
    return tuple(links)


def _junctions(stores_by_model: StoresByModel) -> Mapping[str, set[str]]:
    """The models between two others, each with the keys that many-to-many relations use."""
    keys: dict[str, set[str]] = {}
    for store in stores_by_model.values():
        for relation in store.meta.relations.values():
            if relation.kind is RelationKind.MANY_TO_MANY and relation.through:
                keys.setdefault(relation.through, set()).update((relation.key or "", relation.far_key or ""))
    return keys


def _own_fields(store: Store, junctions: Mapping[str, set[str]]) -> list[str]:
    """What a junction knows besides the two records it joins."""
    marker = store.meta.soft_delete
    others = {"id", "created_at", "updated_at", marker.field if marker else "id"}
    return [f.name for f in store.meta.fields if f.name not in others | junctions[store.meta.name]]


def junction_problems(stores_by_model: StoresByModel) -> Iterator[str]:
    """Problems: junctions whose own fields would be lost, or left behind, without a word."""
    junctions = _junctions(stores_by_model)
    for name, keys in junctions.items():
        store = stores_by_model.get(name)
        fields = [] if store is None else _own_fields(store, junctions)
        if store is None or not fields:
            continue
        for relation in store.meta.relations.values():
            target = stores_by_model.get(relation.target)
            if relation.key not in keys or relation.on_delete is not OnDelete.NO_ACTION or target is None:
                continue
            # A record that is only marked as deleted takes no junction row along, and may come back to it.
            if target.adapter is not store.adapter or target.meta.soft_delete or target.meta.options.query:
                continue
            yield (
                f"{name}.{relation.key}: {name} joins records and has fields of its own"
                f" ({', '.join(fields)}); say what becomes of them when the {target.meta.name} is deleted:"
                ' field(on_delete="cascade") deletes the row with it, "restrict" refuses the delete,'
                ' and "set_null" keeps the row and empties the key'
            )


def unenforceable(store: Store, stores_by_model: StoresByModel) -> Iterator[str]:
    """Problems: what no transaction could do, because it would have to span two databases."""
    for relation in store.meta.relations.values():
        target = stores_by_model.get(relation.target)
        if relation.on_delete is OnDelete.NO_ACTION or target is None or target.adapter is store.adapter:
            continue
        yield (
            f"{store.meta.name}.{relation.key}: on_delete cannot reach from the database of"
            f" {target.meta.name} into another; keep both models in one, or leave on_delete out"
        )


async def remove(store: Store, record_id: str, scope: Scope, tx: Tx | None) -> None:
    """Delete the row and everything that goes with it, or nothing at all."""
    if tx is None:
        async with transaction(store.adapter) as own_tx:
            await remove(store, record_id, scope, own_tx)
        return
    refusal = store.lock_refusal(await store.lock_unchanged(record_id, tx=tx, scope=scope))
    if refusal is not None:
        raise refusal
    await _Removal(tx, scope, store.clock.now()).run(store, [record_id])


async def remove_all(
    store: Store,
    ids: Sequence[str],
    tx: Tx,
    now: datetime,
    *,
    physically: bool = False,
    note_along: NoteAlong | None = None,
) -> None:
    """Delete rows this transaction has locked, and all that goes with them, or raise for all of them.

    `physically` removes them, marked ones too, where the model would only mark them; what goes with
    them goes the way of its own model, and `note_along` is told of it, batch by batch.
    """
    await _Removal(tx, (), now, note_along).run(store, ids, physically=physically)


async def undeletable_ids(store: Store, ids: Sequence[str], tx: Tx) -> set[str]:
    """The ids of rows that surely cannot be deleted with the others; there may be more."""
    ids_in_use: set[str] = set()
    by_rule = _spares_held()
    cascades = any(link.action is OnDelete.CASCADE for link in store.links)
    for link in store.links:
        model, key = link.store.sql, link.key
        if link.action is not OnDelete.RESTRICT and _has_fixed_rows(link.store.meta, by_rule):
            query = sql.parents_in_use(model, key, ids, locked=True, held=by_rule)
            ids_in_use.update(row[0] for row in await tx.fetch(query))
        elif link.action is OnDelete.RESTRICT and not cascades:
            apart = link.store is store
            ids_in_use.update(
                row[0] for row in await tx.fetch(sql.parents_in_use(model, key, ids, apart=apart))
            )
    return ids_in_use


def _spares_held() -> bool:
    """Whether `retention_hold` keeps records from what deletes now: from rules, not from people."""
    return caller().source in (Source.RETENTION, Source.ERASURE)


def _outlives_erasures(meta: ModelMeta) -> bool:
    """Whether an erasure is at work, and may not touch records of this model: `on_erase="keep"`."""
    return meta.options.on_erase == "keep" and caller().source is Source.ERASURE


def _has_fixed_rows(meta: ModelMeta, spares_held: bool) -> bool:
    return bool(meta.locks) or (spares_held and meta.hold is not None)


def deletion(meta: ModelMeta, now: datetime) -> dict[str, Any]:
    """What a softly deleted row is marked with; nothing when rows are removed."""
    marker = meta.soft_delete
    if marker is None:
        return {}
    return {marker.field: now if marker.timestamp else True, "updated_at": now}


class _Removal:
    def __init__(self, tx: Tx, scope: Scope, now: datetime, note_along: NoteAlong | None = None) -> None:
        self._tx = tx
        self._scope = scope
        self._now = now
        self._note_along = note_along
        self._open: list[tuple[ReferringKey, Sequence[str]]] = []
        self._restricted: list[tuple[ReferringKey, Sequence[str]]] = []
        self._touched = False
        self._spares_held = _spares_held()

    async def run(self, store: Store, ids: Sequence[str], *, physically: bool = False) -> None:
        try:
            await self._delete_rows(store, ids, physically, source=None)
            while self._open:
                link, parents = self._open[-1]
                ids = await self._children(link, parents)
                if len(ids) < BATCH:
                    self._open.pop()
                if ids:
                    await self._delete_rows(link.store, ids)
                    if self._note_along is not None:
                        self._note_along(link.store, ids)
            for link, parents in self._restricted:
                await self._refuse_if_held(link, parents)
        except DeleteRestricted:
            if self._touched:  # a caller that catches this must not commit half of it
                self._tx.doom()
            raise

    async def _children(self, link: ReferringKey, parents: Sequence[str]) -> list[str]:
        model = link.store.sql
        checks_versions = has_read(model, self._tx)
        rows = await self._tx.fetch(sql.children(model, link.key, parents, BATCH, versioned=checks_versions))
        if checks_versions:
            refuse_changed(model, changed_rows(model, rows, self._tx), self._tx)
        return [row[0] for row in rows]

    async def _unlink(self, link: ReferringKey, parents: Sequence[str]) -> None:
        model, stamps = link.store.sql, {"updated_at": self._now}
        changed_ids: list[str] = []
        if has_read(model, self._tx):
            query = sql.children(model, link.key, parents, _ALL, versioned=True)
            changed_ids = changed_rows(model, await self._tx.fetch(query), self._tx)
        if link.store.seam.needs_rows:
            await self._unlink_and_tell(link, parents, stamps)
        elif await self._tx.execute(sql.unlink(model, link.key, parents, stamps)):
            await link.store.seam.tell(ChangeKind.UPDATE, self._tx, source=Source.SET_NULL)
        mark_changed(model, changed_ids, self._tx)

    async def _unlink_and_tell(
        self, link: ReferringKey, parents: Sequence[str], stamps: Mapping[str, Any]
    ) -> None:
        """Empty the keys batch by batch: those of one batch are empty when the next is looked up."""
        store, stamps = link.store, {**stamps, link.key: None}
        while True:
            stored_rows = await self._tx.fetch(sql.referring(store.sql, link.key, parents, write_seam.BATCH))
            rows = stored_rows if store.decode is None else [store.decode(row) for row in stored_rows]
            place = store.sql.names.index("id")
            await self._tx.execute(sql.stamp(store.sql, [row[place] for row in rows], stamps))
            await store.seam.tell_rows(ChangeKind.UPDATE, self._tx, rows, stamps, Source.SET_NULL)
            if len(rows) < write_seam.BATCH:
                return

    async def _delete_rows(
        self,
        store: Store,
        ids: Sequence[str],
        physically: bool = False,
        source: Source | None = Source.CASCADE,
    ) -> None:
        """Delete these rows and see to what refers to them."""
        marks = {} if physically else deletion(store.meta, self._now)
        links = [link for link in store.links if not (link.implicit and marks)]
        for link in links:
            if link.action is OnDelete.RESTRICT:
                await self._restrict(store, link, ids)
            elif _outlives_erasures(link.store.meta):
                await self._refuse_if_held(link, ids)
            elif _has_fixed_rows(link.store.meta, self._spares_held):
                await self._refuse_if_held(link, ids, locked=True)
        self._touched = True
        if store.seam.needs_rows:
            await self._remove_and_tell(store, ids, marks, physically, source)
        else:
            await self._tx.execute(sql.remove(store.sql, ids, marks, marked=physically))
            await store.seam.tell(ChangeKind.DELETE, self._tx, source=source)
        for link in links:
            if link.action is OnDelete.SET_NULL:
                await self._unlink(link, ids)
            elif link.action is OnDelete.CASCADE:
                self._open.append((link, ids))

    async def _remove_and_tell(
        self,
        store: Store,
        ids: Sequence[str],
        marks: Mapping[str, Any],
        physically: bool,
        source: Source | None,
    ) -> None:
        for start in range(0, len(ids), write_seam.BATCH):
            some = ids[start : start + write_seam.BATCH]
            rows = await store.seam.images(self._tx, some)
            await self._tx.execute(sql.remove(store.sql, some, marks, marked=physically))
            await store.seam.tell_rows(ChangeKind.DELETE, self._tx, rows, marks or None, source)

    async def _restrict(self, store: Store, link: ReferringKey, ids: Sequence[str]) -> None:
        apart = link.store is store  # a row that goes along restricts nothing
        rows = await self._tx.fetch(sql.parents_in_use(link.store.sql, link.key, ids, apart=apart))
        if not rows:
            return
        if not self._touched and not any(other.action is OnDelete.CASCADE for other in store.links):
            raise await self._refusal(link, ids)
        self._restricted.append((link, [row[0] for row in rows]))

    async def _refuse_if_held(
        self, link: ReferringKey, parents: Sequence[str], *, locked: bool = False
    ) -> None:
        with_held = locked and self._spares_held
        query = sql.parents_in_use(link.store.sql, link.key, parents, locked=locked, held=with_held)
        if await self._tx.fetch_one(query):
            raise await self._refusal(link, parents)

    async def _refusal(self, link: ReferringKey, parents: Sequence[str]) -> DeleteRestricted:
        """Names the model and its key, unless all that refers to us lies outside the caller's scope."""
        meta = link.store.meta
        key = meta.by_name[link.key]
        may_tell = not (key.secret or meta.options.headless)
        if may_tell and self._scope:
            query = sql.parents_in_use(link.store.sql, link.key, parents, self._scope)
            may_tell = await self._tx.fetch_one(query) is not None
        message = f"records of {meta.name} refer to it"
        return DeleteRestricted(
            details=[{"model": meta.name, "field": key.api, "message": message}] if may_tell else None
        )


# Soft-deleted records that refer to each other in a circle: none can come back before the others.
#
# So they come back together, and nothing else does: a record that is referred to from the circle and is
# no part of it has to be there already, alive and inside the scope.


Node = tuple["Store", str]
Circle = Mapping["Store", list[str]]


async def circle_of(store: Store, row: Mapping[str, Any], scope: Scope, tx: Tx) -> Circle | None:
    """The records that must come back with this one, locked; None if that would not be enough."""
    start = (store, row["id"])
    targets_of: dict[Node, set[Node]] = {start: _targets_of(store, row)}
    alive: set[Node] = set()
    while ahead := {node for nodes in targets_of.values() for node in nodes} - targets_of.keys() - alive:
        for target, ids in _ids_by_store(ahead).items():
            targets_of |= await _deleted_with_targets(target, ids, scope, tx)
            others = [record_id for record_id in ids if (target, record_id) not in targets_of]
            live_rows = await tx.fetch(sql.alive(target.sql, others, scope)) if others else ()
            if len(live_rows) < len(others):
                return None
            alive |= {(target, record_id) for record_id in others}
    if _leading_to(start, targets_of) != targets_of.keys():
        return None
    return _ids_by_store(targets_of.keys() - {start})


async def bring_back(circle: Circle, stamps: Mapping[str, Any], tx: Tx) -> None:
    """Take the mark of deletion off all of these."""
    for store, ids in circle.items():
        marks = {**stamps, **undeletion(store)}
        rows = await store.seam.images(tx, ids) if store.seam.needs_rows else ()
        await tx.execute(sql.stamp(store.sql, ids, marks))
        if store.seam.needs_rows:
            await store.seam.tell_rows(ChangeKind.RESTORE, tx, rows, marks, Source.CASCADE)
        else:
            await store.seam.tell(ChangeKind.RESTORE, tx, source=Source.CASCADE)


def undeletion(store: Store) -> dict[str, Any]:
    """What takes the mark of deletion off a row."""
    marker = store.meta.soft_delete
    return {} if marker is None else {marker.field: None if marker.timestamp else False}


async def _deleted_with_targets(store: Store, ids: list[str], scope: Scope, tx: Tx) -> dict[Node, set[Node]]:
    """Those of the records that are marked as deleted, each with the records it must refer to."""
    if store.meta.soft_delete is None:
        return {}
    keys = () if store.references is None else store.references.kept_keys
    rows = await tx.fetch(sql.deleted_rows(store.sql, ids, keys, scope))
    return {(store, row[0]): _targets_of(store, dict(zip(keys, row[1:], strict=True))) for row in rows}


def _targets_of(store: Store, row: Mapping[str, Any]) -> set[Node]:
    return set() if store.references is None else set(store.references.records_named(row))


def _leading_to(start: Node, targets_of: Mapping[Node, set[Node]]) -> set[Node]:
    """The records from which references lead to `start`, itself included."""
    referring: dict[Node, list[Node]] = {}
    for node, others in targets_of.items():
        for other in others:
            referring.setdefault(other, []).append(node)
    leading, ahead = {start}, [start]
    while ahead:
        more = [node for node in referring.get(ahead.pop(), ()) if node not in leading]
        leading.update(more)
        ahead += more
    return leading


def _ids_by_store(nodes: Iterable[Node]) -> dict[Store, list[str]]:
    """Ids by store, both in one order, so that two who meet wait for each other."""
    ids_by_store: dict[Store, list[str]] = {}
    for store, record_id in sorted(nodes, key=lambda node: (node[0].meta.name, node[1])):
        ids_by_store.setdefault(store, []).append(record_id)
    return ids_by_store
