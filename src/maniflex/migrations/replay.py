"""`migrate check --replay`: apply all files to an empty database and compare it with a fresh start."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from maniflex.db.migrate import migrate
from maniflex.db.schema_differences import Difference, What
from maniflex.migrations.apply import Migrator
from maniflex.migrations.report import CheckReport
from maniflex.migrations.take_over import read_catalogue, scratch_database
from maniflex.migrations.target import MigrationError, MigrationTarget


async def replay_problems(target: MigrationTarget, report: CheckReport) -> list[str]:
    """How a database that all files were applied to differs from one that the start has made.

    What the report tells already is not told again. A column that no model has any more becomes one of its
    warnings: it stays until a file drops it.
    """
    own_models = [model for model in target.models if not model.readonly]
    async with scratch_database(target.adapter, "replay") as scratch:
        try:
            await Migrator(replace(target, adapter=scratch, records=None)).up("heads")
        except MigrationError as error:
            return [f"the files do not apply to an empty database: {problem}" for problem in error.problems]
        replayed_facts = await read_catalogue(scratch)
    async with scratch_database(target.adapter, "fresh") as scratch:
        await migrate(scratch, own_models, target.statements(target.dialect))
        fresh_facts = await read_catalogue(scratch)
    missing = {fact for fact in fresh_facts - replayed_facts if not _is_told(fact, report.differences)}
    extra = {fact for fact in replayed_facts - fresh_facts if not _is_told(fact, report.differences)}
    left_columns = {fact for fact in extra if fact.startswith("the column ")}
    if not missing:
        report.warnings.extend(f"the files leave {fact}" for fact in sorted(left_columns))
        extra -= left_columns
    return [
        *(f"a fresh start has {fact}, the files do not make it" for fact in sorted(missing)),
        *(f"the files make {fact}, a fresh start does not" for fact in sorted(extra)),
    ]


def _is_told(fact: str, differences: Sequence[Difference]) -> bool:
    return any(re.match(_told_facts(one), fact) for one in differences if one.model is not None)


def _told_facts(difference: Difference) -> str:
    """Which facts a difference of the database says: a harmless one of itself, another of its whole table."""
    assert difference.model is not None
    table, name = re.escape(difference.model.table.name), re.escape(difference.name)
    if not difference.harmless:
        return rf".*\b{table}\b"
    if difference.what is What.EXTRA_COLUMN:
        return rf"the column {table}\.{name}(\$order)? "
    return rf".*\b{name}\b"
