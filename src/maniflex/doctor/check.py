"""A check: its code, what it looks for, and the function that looks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from maniflex.doctor.finding import Finding, Problem, Severity
from maniflex.doctor.subject import OpenDatabase, Subject


@dataclass(frozen=True, slots=True)
class Coded:
    """What checks have in common."""

    code: str
    severity: Severity  # of what it finds, unless it says otherwise
    looks_for: str  # the row of its code in docs/operate/doctor.md

    def finding(self, problem: Problem) -> Finding:
        """The problem under the code of the check."""
        severity = problem.severity or self.severity
        return Finding(self.code, severity, problem.where, problem.why, problem.fix, problem.about)


@dataclass(frozen=True, slots=True)
class DeclarationCheck(Coded):
    """Looks at declarations, settings and files; asks no database."""

    find: Callable[[Subject], Iterable[Problem]]


@dataclass(frozen=True, slots=True)
class DatabaseCheck(Coded):
    """Asks one database, in a read-only transaction of its own."""

    ask: Callable[[OpenDatabase], AsyncIterator[Problem]]
