"""Soft-deleted records that refer to each other in a circle: none can come back before the others.

So they come back together, and nothing else does: a record that is referred to from the circle and
is no part of it has to be there already, alive and inside the scope.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from maniflex._caller import Source
from maniflex.db.changes import ChangeKind, images, tell, tell_rows
from maniflex.db.port import Tx
from maniflex.sql import cascade as sql
from maniflex.sql.where import Scope

if TYPE_CHECKING:
    from maniflex.db.store import Store

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
        rows = await images(store, tx, ids) if store.needs_rows else ()
        await tx.execute(sql.stamp(store.sql, ids, marks))
        if store.needs_rows:
            await tell_rows(store, ChangeKind.RESTORE, tx, rows, marks, Source.CASCADE)
        elif store.listeners:
            await tell(store, ChangeKind.RESTORE, tx, source=Source.CASCADE)


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
