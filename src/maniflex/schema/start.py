"""The start of an application: its tables are made, checked or left to migration files, as settings say.

What is missing is added (`additions.py`) and what contradicts stops the start (`refusals.py`). Nothing is
dropped or rewritten, and renamed only where `renamed_from` says so. A database that migration files keep is
never altered by the start itself. Alembic is imported where something changes, not by a start that finds
everything as it should be.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from maniflex.db.current import reading, transaction
from maniflex.db.port import Adapter
from maniflex.errors import DeclarationError
from maniflex.schema.derived import large_rewrites, ready_models, refresh_derived
from maniflex.schema.differences import Difference, What, find_differences
from maniflex.schema.refusals import Refusals
from maniflex.sql.model import ModelSql
from maniflex.sql.statement import Sql, by_dialect

if TYPE_CHECKING:
    from maniflex.schema.check import MigrationStatus
    from maniflex.schema.files import MigrationFile
    from maniflex.schema.target import MigrationTarget

log = logging.getLogger("maniflex.migrate")

_ADDED = frozenset(
    {
        *(What.TABLE, What.RENAMED_TABLE, What.COLUMN, What.RENAMED_COLUMN, What.NO_DEFAULT),
        *(What.DERIVED, What.INDEX, What.ENGINE),
    }
)


async def make_tables(
    adapter: Adapter,
    models: Sequence[ModelSql],
    statements: Sequence[Sql] = (),
    *,
    application: str = "app:server",
    has_files: bool = False,
) -> None:
    """Add what the tables of these models lack, or stop where they contradict; repeating it does no harm.

    `statements` make what durable work keeps beside its models.
    """
    models = [model for model in models if not model.readonly]
    refusals = partial(Refusals, models=models, application=application, has_files=has_files, adds=True)
    differences = await find_differences(reading(adapter), models, statements)
    if any(difference.what in _ADDED for difference in differences):
        from maniflex.schema.additions import Additions

        await Additions(adapter, models, statements).add(differences, refusals)
    else:
        await refusals(reading(adapter), differences=differences).judge()


async def check_tables(
    adapter: Adapter,
    models: Sequence[ModelSql],
    *,
    application: str = "app:server",
    has_files: bool = False,
    adds: bool = False,
) -> None:
    """The same look at tables that nothing changes; unless the start `adds` it, what they lack stops it."""
    run, models = reading(adapter), [model for model in models if not model.readonly]
    differences = await find_differences(run, models)
    rest = Refusals(run, models, differences, application=application, has_files=has_files, adds=adds)
    await rest.judge()


async def start_on_migrated(target: MigrationTarget, *, migrate: bool, strict: bool, refresh: bool) -> bool:
    """Apply what is pending if the start should, else stop; then compare the models with the database.

    `strict` stops where the models are ahead of the files; otherwise the answer says whether they are not.
    `refresh` lets the start bring order keys and search up to date.
    """
    from maniflex.schema.apply import Migrator
    from maniflex.schema.check import read_status
    from maniflex.schema.steps import MigrationListener

    status = await read_status(target)
    if status.pending and migrate:
        count = await Migrator(target, MigrationListener(on_noted=_log_noted)).up()
        log.info("%s: applied %d migrations", target.adapter.label, count)
    elif status.pending:
        _refuse_pending(status)
    for revision in status.missing if target.files.exist else ():
        log.warning(
            "%s is at revision %s, which no file here has; a newer release may have applied it",
            *(target.adapter.label, revision),
        )
    differences = await target.differences()
    if refresh:  # these are about to be made
        differences = [difference for difference in differences if difference.what is not What.DERIVED]
    _judge(target, differences, strict=strict)
    if refresh:
        await _refresh(target)
    return all(difference.harmless for difference in differences)


def _log_noted(file: MigrationFile) -> None:
    log.info("%s: noted as applied: an earlier start has made what it makes", file.title)


def _refuse_pending(status: MigrationStatus) -> None:
    names = ", ".join(state.file.title for state in status.pending)
    raise DeclarationError(
        f"{status.target.adapter.label}: not applied yet: {names}. Apply"
        f" with {status.target.command('up @')}, or start with migrate_on_start=True"
    )


def _judge(target: MigrationTarget, differences: Sequence[Difference], *, strict: bool) -> None:
    """Stop where the models are ahead of the database and the start is strict; else warn."""
    from maniflex.schema.check import advise_next_file

    problems = [difference.text for difference in differences if not difference.harmless]
    advice = advise_next_file(target)
    if problems and strict:
        raise DeclarationError(*problems, f"the models are ahead of the migrations; {advice}")
    for difference in differences:
        if difference.harmless:
            log.warning("%s", difference.text)
        else:
            log.warning("%s; %s", difference.text, advice)


async def _refresh(target: MigrationTarget) -> None:
    """Bring order keys and search up to date, each model for itself where others may write meanwhile."""
    from maniflex.schema.apply import describe_rewrites

    run = reading(target.adapter)
    large = await large_rewrites(run, await ready_models(run, target.models))
    if large:
        raise DeclarationError(describe_rewrites(target, large))
    groups = by_dialect(
        target.dialect, sqlite=[list(target.models)], postgres=[[model] for model in target.models]
    )
    for models in groups:
        async with transaction(target.adapter) as tx:
            await refresh_derived(tx, models)
