"""What a check is, what it finds, and where in the source that is."""

from __future__ import annotations

import ast
import inspect
import os
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maniflex.model.base import Model

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


# Where a declaration stands: file and line of models, fields and functions.


_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_FRAMEWORK = str(Path(__file__).parents[1])


def place_of_model(model: type[Model], field: str | None = None) -> str:
    """File and line of a model, or of one of its fields; empty when the class has no file."""
    path = _file_of(model)
    lines = _class_lines(path).get(model.__qualname__.rpartition(".")[2]) if path else None
    if path is None or lines is None:
        return ""
    own_line, field_lines = lines
    return f"{_short(path)}:{field_lines.get(field or '', own_line)}"


def place_of_function(fn: Callable[..., Any]) -> str:
    """File and line of a function; empty when it has none."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return "" if code is None else f"{_short(code.co_filename)}:{code.co_firstlineno}"


def at_place(name: str, place: str) -> str:
    """A name with the place where it is declared, if it has one."""
    return f"{name} ({place})" if place else name


def where_of(model: type[Model], field: str | None = None) -> str:
    """A model or a field, as findings name it."""
    name = model.__name__ if field is None else f"{model.__name__}.{field}"
    return at_place(name, place_of_model(model, field))


def texts_in_sources() -> Iterator[tuple[str, str]]:
    """Every text that is written in the modules of the application, and where."""
    for path in _application_files():
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                value = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                yield value, f"{_short(path)}:{node.lineno}"


def _application_files() -> list[str]:
    """The files of loaded modules that belong to no library."""
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return sorted(path for path in paths if path and path.endswith(".py") and not _is_of_library(path))


def _is_of_library(path: str) -> bool:
    is_installed = "site-packages" in path or "dist-packages" in path
    return is_installed or path.startswith((*_LIBRARIES, _FRAMEWORK))


def _file_of(model: type[Model]) -> str | None:
    module = sys.modules.get(model.__module__)
    return getattr(module, "__file__", None)


@cache
def _class_lines(path: str) -> dict[str, tuple[int, dict[str, int]]]:
    """The line of each class in a file, and those of its attributes."""
    classes = (node for node in ast.walk(_tree(path)) if isinstance(node, ast.ClassDef))
    return {node.name: (node.lineno, dict(_attribute_lines(node))) for node in classes}


def _attribute_lines(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.lineno


def _tree(path: str) -> ast.Module:
    try:
        return ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):  # it was changed or removed since it was loaded
        return ast.Module(body=[], type_ignores=[])


def _short(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
