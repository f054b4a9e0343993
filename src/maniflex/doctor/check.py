"""A check: its code, what it looks for, and the function that looks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


# What `maniflex doctor` found, as values: for the terminal, for programs, for the panel.


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"  # it will hurt: data seen by strangers, lost or not stored
    WARNING = "warning"  # it may hurt, or is meant and should say so
    NOTE = "note"  # something could not be looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing a check found."""

    where: str  # a model, a field, a route, a database; with file and line where there is one
    why: str  # it hurts, in one sentence
    fix: str  # what to type
    about: tuple[str, ...] = ()  # the names that `server.doctor_ignore` may give for it
    severity: Severity | None = None  # None: that of its check


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem under the code of its check."""

    code: str
    severity: Severity
    where: str
    why: str
    fix: str
    about: tuple[str, ...] = ()

    def as_json(self) -> dict[str, str]:
        """The finding as `--json` prints it."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "where": self.where,
            "why": self.why,
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class Ignore:
    """A finding that the application silences, and why."""

    code: str
    targets: tuple[str, ...]  # models, fields, routes; none: wherever it is found
    reason: str

    def covers(self, finding: Finding) -> bool:
        """Whether the finding is one of those it silences."""
        return self.silences(finding.code, (finding.where, *finding.about))

    def silences(self, code: str, names: Iterable[str]) -> bool:
        """Whether it is about what is found under this code and goes by these names."""
        return code == self.code and (not self.targets or not set(self.targets).isdisjoint(names))


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All findings, and those that the application silences."""

    findings: tuple[Finding, ...]
    silenced: tuple[tuple[Finding, Ignore], ...] = ()

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)


def report_of(findings: Iterable[Finding], ignores: Iterable[Ignore]) -> DoctorReport:
    """The findings in the order of their codes, without those that are silenced."""
    rules, findings_left, pairs = list(ignores), [], []
    for finding in sorted(findings, key=lambda finding: (finding.code, finding.where)):
        rule = next((rule for rule in rules if rule.covers(finding)), None)
        if rule is None:
            findings_left.append(finding)
        else:
            pairs.append((finding, rule))
    return DoctorReport(tuple(findings_left), tuple(pairs))
