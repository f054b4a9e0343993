"""The modules of runs stand on each other in one order, types included, with `server.work` on top."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import maniflex.background.runs

PACKAGE = maniflex.background.runs.__name__
FOLDER = Path(str(maniflex.background.runs.__file__)).parent


def imported_modules(path: Path) -> set[str]:
    """The modules of runs that a module imports, wherever it does."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            names.add(str(node.module).removeprefix(f"{PACKAGE}."))
    return names


def test_no_two_modules_of_runs_import_each_other() -> None:
    imports = {path.stem: imported_modules(path) for path in FOLDER.glob("*.py")}

    assert "engine" in imports["worker"]
    list(TopologicalSorter(imports).static_order())  # raises `CycleError`, which names a circle
    assert [name for name, others in imports.items() if "api" in others] == []
