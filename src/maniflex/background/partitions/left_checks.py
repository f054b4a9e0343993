"""Removes a check that a killed process left on a default partition, in the moment it refuses a row.

The check keeps the default partition free of rows of a period until the partition of that period is there
(builder.py). Whoever makes partitions removes what another left behind; where nobody does before the period
begins, the first process whose row is refused does it.
"""

from __future__ import annotations

from dataclasses import replace

from maniflex.background.partitions.builder import CHECK, PartitionBuilder
from maniflex.background.partitions.layout import EVENTS, MESSAGES, RUNS, STEPS
from maniflex.background.partitions.short_locks import PATIENCE, patient_sibling, take_turn
from maniflex.db.port import Adapter, Executor
from maniflex.errors import ConstraintViolation, RequestError, SerializationFailure

_TABLES = {table.default: table for table in (RUNS, EVENTS, STEPS, MESSAGES)}
_PATIENCE = replace(PATIENCE, tries=5)


async def mend_refusal(adapter: Adapter, run: Executor, error: ConstraintViolation) -> None:
    """Return if the row may be stored now; otherwise raise what its caller is to be told."""
    table = _TABLES.get(error.table)
    if table is None or error.constraint != CHECK:
        raise error
    try:
        async with take_turn(adapter) as ours, patient_sibling(adapter) as own:
            if ours:  # otherwise another process removes it, or makes the partition
                await PartitionBuilder(own, table, _PATIENCE).remove_check()
    except RequestError as problem:  # this role may not own the table
        raise error from problem
    if not ours or run is not adapter:  # its transaction is over
        raise SerializationFailure() from error
