"""The statements about runs in the form for a partitioned table.

Before PostgreSQL leaves a partition out, it locks every partition of the table that a planned statement
names, so a statement that names the table costs more with each of them. A claim therefore names the few
partitions where something may be due, and an outcome the one partition that has its runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from maniflex.background.partitions.layout import RUNS, Partition, PartitionLayout
from maniflex.sql.statement_files import NamedStatement

MOST_NAMED = 16  # partitions; a claim of more names the table
_BY_IDS = ("renew", "succeed", "succeed_unlocked", "settle", "let_go")
_COLUMNS = "id, type, status, priority, group_key, run_at, deleted_at"
_LOCKING = re.compile(
    r"taken AS MATERIALIZED \((?P<taken>.*?)\n\), held AS \((?P<held>.*?)\n\), log AS \(", re.DOTALL
)


@dataclass(slots=True)
class KnownPartitions:
    """What the keeper last saw of the partitions of runs; all stores of a process share it."""

    layout: PartitionLayout | None = None  # None when the table has no partitions, or none are known
    open: tuple[str, ...] = ()  # where something may be due; empty when that may be anywhere

    def learn(self, layout: PartitionLayout | None, open: Sequence[str]) -> None:
        self.layout = layout
        self.open = tuple(open) if len(open) <= MOST_NAMED else ()

    def holder(self, ids: Sequence[str]) -> str | None:
        """The partition that has all these runs; None when there are several, or it is the default one."""
        if self.layout is None:
            return None
        lowest, highest = min(ids), max(ids)
        for one in reversed(self.layout.partitions):
            if one.lower <= lowest:
                return one.name if highest < one.upper else None
        return None

    def note_claimed(self, ids: Sequence[str]) -> None:
        """Look everywhere until the keeper has looked again, when a run was found where nothing was due."""
        if self.layout is not None and any(_has_any(one, ids) for one in self._find_closed(self.layout)):
            self.open = ()

    def _find_closed(self, layout: PartitionLayout) -> list[Partition]:
        return [one for one in layout.partitions if one.name not in self.open] if self.open else []


def _has_any(partition: Partition, ids: Sequence[str]) -> bool:
    return any(partition.lower <= id < partition.upper for id in ids)


@dataclass(frozen=True, slots=True)
class PartitionedStatements:
    """The statements by name, on the whole table or on some of its partitions."""

    _plain: Mapping[str, NamedStatement]
    _whole: dict[str, NamedStatement] = field(default_factory=dict)
    _named: dict[tuple[str, tuple[str, ...]], NamedStatement] = field(default_factory=dict)

    def on_table(self, name: str) -> NamedStatement:
        """The statement on the whole table, without opening partitions that it has nothing to do with."""
        if name not in self._whole:
            statement = self._plain[name]
            self._whole[name] = _in_range(statement) if name in _BY_IDS else _with_group_table(statement)
        return self._whole[name]

    def on_partitions(self, name: str, partitions: tuple[str, ...]) -> NamedStatement:
        """The claim on these partitions, or another statement on one of them."""
        key = (name, partitions)
        if key not in self._named:
            if len(self._named) > 100:  # sets of partitions come and go
                self._named.clear()
            if name == "claim":
                self._named[key] = _claim_named(_with_group_table(self._plain[name]), partitions)
            else:
                [partition] = partitions
                self._named[key] = self._plain[name].on_table(RUNS.name, partition)
        return self._named[key]


def _in_range(statement: NamedStatement) -> NamedStatement:
    count = len(statement.names)
    within = f"r.id >= ${count + 1} AND r.id <= ${count + 2}"
    text = re.sub(r"\br\.id = [dm]\.id\b", rf"\g<0> AND {within}", statement.text)
    return NamedStatement(text, (*statement.names, "lowest", "highest"))


def _with_group_table(claim: NamedStatement) -> NamedStatement:
    """The same claim, which asks the small table of groups whether one is busy, and not all partitions."""
    text = claim.text.replace("FROM workflow_run b", "FROM workflow_group b")
    return NamedStatement(text.replace("AND b.lease_until IS NOT NULL", ""), claim.names)


def _claim_named(claim: NamedStatement, partitions: Sequence[str]) -> NamedStatement:
    """The same claim on partitions by name.

    It reads their union. Rows of a union can be neither locked nor changed, so each partition locks its own
    candidates, up to the limit; of all those the most urgent are taken, each by the partition it is in.
    """
    locking = _LOCKING.search(claim.text)
    assert locking is not None
    limit = f"${claim.names.index('limit') + 1}"
    union = " UNION ALL ".join(f"SELECT {_COLUMNS} FROM {one}" for one in partitions)
    reading = claim.text[: locking.start()].replace("FROM workflow_run r", f"FROM ({union}) r")
    places = range(len(partitions))
    taken = [
        _on(locking["taken"], one).replace("r.id", "r.id, r.priority, r.run_at", 1) for one in partitions
    ]
    held = [_on(locking["held"], one) for one in partitions]
    parts = [
        *(f"taken_{n} AS MATERIALIZED ({taken[n]}\n)" for n in places),
        f"taken AS MATERIALIZED (SELECT id FROM ({_union('taken', places)}) t"
        f" ORDER BY priority DESC, run_at, id LIMIT {limit})",
        *(f"held_{n} AS ({held[n]}\n)" for n in places),
        f"held AS ({_union('held', places)})",
        "log AS (",
    ]
    return NamedStatement(reading + ", ".join(parts) + claim.text[locking.end() :], claim.names)


def _on(text: str, partition: str) -> str:
    return text.replace("workflow_run r", f"{partition} r")


def _union(name: str, places: range) -> str:
    return " UNION ALL ".join(f"SELECT * FROM {name}_{n}" for n in places)
