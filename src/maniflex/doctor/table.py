"""All checks. A code stands here once, and has its row in docs/operate/doctor.md."""

from __future__ import annotations

from collections.abc import Sequence

from maniflex.doctor import (
    access_checks,
    postgres_checks,
    query_checks,
    schema_checks,
    scope_checks,
    secret_checks,
    setting_checks,
    sqlite_checks,
    work_checks,
)
from maniflex.doctor.check import Coded, DatabaseCheck, DeclarationCheck
from maniflex.doctor.finding import Severity
from maniflex.doctor.probe import PROBES
from maniflex.sql.statement import Dialect

UNREACHABLE = DeclarationCheck("T139", Severity.ERROR, "a database that cannot be opened", lambda subject: ())

DECLARATION_CHECKS: tuple[DeclarationCheck, ...] = (
    *access_checks.CHECKS,
    *scope_checks.CHECKS,
    *secret_checks.CHECKS,
    *postgres_checks.CHECKS,
    *sqlite_checks.CHECKS,
    *work_checks.CHECKS,
    *setting_checks.CHECKS,
)
_ANY_DATABASE = (*query_checks.CHECKS, *schema_checks.CHECKS, *work_checks.DATABASE_CHECKS)
_DATABASE_CHECKS: dict[Dialect, tuple[DatabaseCheck, ...]] = {
    Dialect.SQLITE: (*_ANY_DATABASE, *sqlite_checks.SQLITE_CHECKS),
    Dialect.POSTGRES: (
        *_ANY_DATABASE,
        *schema_checks.POSTGRES_CHECKS,
        *query_checks.POSTGRES_CHECKS,
        *postgres_checks.POSTGRES_CHECKS,
    ),
}

HIDDEN_POOLER = next(check for check in postgres_checks.POSTGRES_CHECKS if check.code == "T134")


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
