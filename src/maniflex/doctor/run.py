"""Run the checks on an application: `examine` gives findings, and changes nothing anywhere.

Databases are opened read-only, unless the application has them open, and each check has a read-only
transaction of its own. A check that fails or takes too long is a note: the others are made all the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress

from maniflex.db.port import Adapter
from maniflex.db.sqlite.adapter import SqliteAdapter
from maniflex.db.sqlite.connect import MEMORY
from maniflex.doctor import (
    access_checks,
    query_checks,
    schema_checks,
    setting_checks,
    work_checks,
)
from maniflex.doctor import (
    database_checks as databases,
)
from maniflex.doctor.check import (
    Coded,
    DatabaseCheck,
    DeclarationCheck,
    DoctorReport,
    Finding,
    OpenDatabase,
    Problem,
    Severity,
    Subject,
    report_of,
)
from maniflex.doctor.database_checks import pooler_problem
from maniflex.doctor.query_checks import PROBES, REPEATED_STATEMENTS, StatementCounter, probe_lists
from maniflex.errors import ManiflexError
from maniflex.sql.statement import Dialect

PATIENCE = 10.0  # seconds for one check of a database


async def examine(
    subject: Subject, *, with_databases: bool = True, probe: bool = False, is_running: bool = False
) -> DoctorReport:
    """All findings; `is_running` when the databases of the application are open already.

    With `probe`, which is not for an application that runs, lists are asked for too.
    """
    findings = list(_check_declarations(subject))
    for adapter in subject.adapters if with_databases else ():
        findings += await (_ask(subject, adapter) if is_running else _open_and_ask(subject, adapter))
    if probe and with_databases and not is_running:
        findings += await _probe(subject)
    return report_of(findings, subject.ignores)


async def _probe(subject: Subject) -> list[Finding]:
    """What is found by asking for lists; none when a database cannot be opened, which is told already."""
    counter = StatementCounter()
    async with AsyncExitStack() as stack:
        for adapter in subject.adapters:
            counter.watch(adapter)
            if await _open(adapter) is not None:
                return []
            stack.push_async_callback(adapter.close)
        try:
            return [check.finding(problem) async for check, problem in probe_lists(subject, counter)]
        except Exception as error:
            return [_not_made(REPEATED_STATEMENTS, "lists", error)]


def _check_declarations(subject: Subject) -> Iterator[Finding]:
    for check in DECLARATION_CHECKS:
        try:
            yield from [check.finding(problem) for problem in check.find(subject)]
        except Exception as error:  # a broken check hides no other
            yield _not_made(check, "the application", error)


async def _open_and_ask(subject: Subject, adapter: Adapter) -> list[Finding]:
    problem = await _open(adapter)
    if problem is not None:
        if "pooler=True" in problem.why:  # as the adapter says when a pooler refuses its settings
            return [HIDDEN_POOLER.finding(pooler_problem(adapter.label, problem.why))]
        return [UNREACHABLE.finding(problem)]
    try:
        return await _ask(subject, adapter)
    finally:
        with suppress(ManiflexError, OSError):
            await adapter.close()


async def _open(adapter: Adapter) -> Problem | None:
    """Open the database for reading; the reason why it cannot be, if so."""
    if _is_absent(adapter):
        return Problem(
            where=adapter.label,
            why="there is no such file yet, so nothing that is stored was looked at",
            fix="start the server once, which makes it: maniflex run app:server",
            severity=Severity.NOTE,
        )
    try:
        await adapter.open(read_only=True)
    except (ManiflexError, OSError) as error:
        return Problem(
            where=adapter.label,
            why=f"the database cannot be opened, so nothing that is stored was looked at: {_reason(error)}",
            fix="check the address, DB_WRITE_URL or Server(database=...), and that the database is running;"
            " --no-database leaves it out",
        )
    return None


def _is_absent(adapter: Adapter) -> bool:
    """Whether it is a file that nothing has made yet; opening it for reading would fail."""
    return isinstance(adapter, SqliteAdapter) and adapter.path != MEMORY and not os.path.exists(adapter.path)


async def _ask(subject: Subject, adapter: Adapter) -> list[Finding]:
    """What the checks of one database find."""
    models = [store.sql for store in subject.stores.values() if store.adapter is adapter]
    own = [model for model in models if not model.readonly]
    findings: list[Finding] = []
    for check in database_checks(adapter.dialect):
        try:
            async with asyncio.timeout(PATIENCE), adapter.transaction(read_only=True) as tx:
                database = OpenDatabase(subject, adapter, tx, own)
                findings += [check.finding(problem) async for problem in check.ask(database)]
        except Exception as error:
            findings.append(_not_made(check, adapter.label, error))
    return findings


def _not_made(check: Coded, where: str, error: Exception) -> Finding:
    return check.finding(
        Problem(
            where=where,
            why=f"this could not be checked: {_reason(error)}",
            fix=f"mend that and run doctor again, or leave it out with --ignore {check.code}",
            severity=Severity.NOTE,
        )
    )


def _reason(error: BaseException) -> str:
    """What went wrong, in one line; a driver's own words where ours say less."""
    if isinstance(error, TimeoutError):
        return f"it took longer than {PATIENCE:g} seconds"
    cause = error.__cause__
    text = str(error) if cause is None else f"{error} ({cause})"
    return " ".join((text or type(error).__name__).split())


# All checks. A code stands here once, and has its row in docs/operate/doctor.md.


UNREACHABLE = DeclarationCheck("T139", Severity.ERROR, "a database that cannot be opened", lambda subject: ())

DECLARATION_CHECKS: tuple[DeclarationCheck, ...] = (
    *access_checks.CHECKS,
    *access_checks.SCOPE_CHECKS,
    *access_checks.SECRET_CHECKS,
    *databases.POSTGRES_DECLARATION_CHECKS,
    *databases.SQLITE_DECLARATION_CHECKS,
    *work_checks.CHECKS,
    *setting_checks.CHECKS,
)
_ANY_DATABASE = (*query_checks.CHECKS, *schema_checks.CHECKS, *work_checks.DATABASE_CHECKS)
_DATABASE_CHECKS: dict[Dialect, tuple[DatabaseCheck, ...]] = {
    Dialect.SQLITE: (*_ANY_DATABASE, *databases.SQLITE_CHECKS),
    Dialect.POSTGRES: (
        *_ANY_DATABASE,
        *schema_checks.POSTGRES_CHECKS,
        *query_checks.POSTGRES_CHECKS,
        *databases.POSTGRES_CHECKS,
    ),
}

HIDDEN_POOLER = next(check for check in databases.POSTGRES_CHECKS if check.code == "T134")


def database_checks(dialect: Dialect) -> Sequence[DatabaseCheck]:
    """The checks of a database of that dialect."""
    return _DATABASE_CHECKS[dialect]


def all_checks() -> list[Coded]:
    """Every check once, in the order of the codes."""
    of_databases = (check for checks in _DATABASE_CHECKS.values() for check in checks)
    checks: tuple[Coded, ...] = (UNREACHABLE, *PROBES, *DECLARATION_CHECKS, *of_databases)
    by_code = {check.code: check for check in checks}
    return [by_code[code] for code in sorted(by_code)]


def codes() -> list[str]:
    """Every code there is."""
    return [check.code for check in all_checks()]
