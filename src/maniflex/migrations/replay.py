"""`migrate check --replay`: apply all files to an empty database and compare it with a fresh start."""

from __future__ import annotations

from dataclasses import replace

from maniflex.db.migrate import migrate
from maniflex.migrations.apply import Migrator
from maniflex.migrations.catalogue import read_catalogue
from maniflex.migrations.errors import MigrationError
from maniflex.migrations.scratch import scratch_database
from maniflex.migrations.target import MigrationTarget


async def replay_problems(target: MigrationTarget, warnings: list[str]) -> list[str]:
    """How a database that all files were applied to differs from one that the start has made.

    A column that no model has any more becomes one of the `warnings`: it stays until a file drops it.
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
    missing, extra = fresh_facts - replayed_facts, replayed_facts - fresh_facts
    left_columns = {fact for fact in extra if fact.startswith("the column ")}
    if not missing:
        warnings += [f"the files leave {fact}" for fact in sorted(left_columns)]
        extra -= left_columns
    return [
        *(f"a fresh start has {fact}, the files do not make it" for fact in sorted(missing)),
        *(f"the files make {fact}, a fresh start does not" for fact in sorted(extra)),
    ]
