"""The start of an application on a database that migrations keep: it is never altered by the start itself."""

from __future__ import annotations

import logging

from maniflex.db.current import transaction
from maniflex.db.primary import reading
from maniflex.errors import DeclarationError
from maniflex.migrations.apply import Migrator
from maniflex.migrations.derived import ready_models, refresh_derived
from maniflex.migrations.files import MigrationFile
from maniflex.migrations.job import MigrationListener
from maniflex.migrations.report import MigrationStatus, read_status
from maniflex.migrations.rewrites import describe_rewrites, large_rewrites
from maniflex.migrations.target import MigrationTarget
from maniflex.sql.statement import by_dialect

log = logging.getLogger("maniflex.migrate")


async def start_on_migrated(target: MigrationTarget, *, migrate: bool, strict: bool, refresh: bool) -> None:
    """Apply what is pending if the start should, else stop; then compare the models with the database.

    `strict` stops where the models are ahead of the files; `refresh` lets the start bring order keys and
    search up to date.
    """
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
    await _compare(target, strict=strict)
    if refresh:
        await _refresh(target)


def _log_noted(file: MigrationFile) -> None:
    log.info("%s: noted as applied: an earlier start has made what it makes", file.title)


def _refuse_pending(status: MigrationStatus) -> None:
    names = ", ".join(state.file.title for state in status.pending)
    raise DeclarationError(
        f"{status.target.adapter.label}: not applied yet: {names}. Apply"
        f" with {status.target.command('up @')}, or start with migrate_on_start=True"
    )


async def _compare(target: MigrationTarget, *, strict: bool) -> None:
    differences = await target.differences()
    problems = [difference.text for difference in differences if not difference.harmless]
    advice = f"write a migration with {target.command('make @')} and apply it with {target.command('up @')}"
    if problems and strict:
        raise DeclarationError(*problems, f"the models are ahead of the migrations; {advice}")
    for difference in differences:
        if difference.harmless:
            log.warning("%s", difference.text)
        else:
            log.warning("%s; %s", difference.text, advice)


async def _refresh(target: MigrationTarget) -> None:
    """Bring order keys and search up to date, each model for itself where others may write meanwhile."""
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
