"""The start of an application on a database that migrations keep: it is never altered by the start itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from maniflex.db.current import reading, transaction
from maniflex.errors import DeclarationError
from maniflex.schema.apply import Migrator, describe_rewrites
from maniflex.schema.check import MigrationStatus, advise_next_file, read_status
from maniflex.schema.derived import large_rewrites, ready_models, refresh_derived
from maniflex.schema.differences import Difference, What
from maniflex.schema.files import MigrationFile
from maniflex.schema.steps import MigrationListener
from maniflex.schema.target import MigrationTarget
from maniflex.sql.statement import by_dialect

log = logging.getLogger("maniflex.migrate")


async def start_on_migrated(target: MigrationTarget, *, migrate: bool, strict: bool, refresh: bool) -> bool:
    """Apply what is pending if the start should, else stop; then compare the models with the database.

    `strict` stops where the models are ahead of the files; otherwise the answer says whether they are not.
    `refresh` lets the start bring order keys and search up to date.
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
