"""Arrows point down: a package imports only what stands below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS = (
    "__main__",
    "cli testing",
    "server",
    "app",
    "admin realtime ext background_api",
    "doctor transfer",
    "migrations",
    "http openapi features middleware",
    "erasure",
    "files audit",
    "background",
    "pipeline events",
    "schema",
    "db storage",
    "sql",
    "query",
    "model encryption",
    "config errors _callables _caller _client_address _clock _fence _german _ids _json _locales _logging"
    " _messages _names _outbound _outbound_http _service _settings _tables _threads _webhook_signatures",
)
# Named for type checkers alone: what applications are given far below it, such as `ctx.server`.
TYPES_ONLY = {("pipeline/context.py", "app")}
DEPTH = {package: depth for depth, group in enumerate(LAYERS) for package in group.split()}
LEAVES = len(LAYERS) - 1
SOURCE = Path(__file__).parent.parent / "src" / "maniflex"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(path: Path) -> Iterator[str]:
    """The top-level packages of maniflex this module names, wherever it names them."""
    here = ("maniflex", *path.relative_to(SOURCE).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join([*here[: -node.level], *filter(None, [node.module])]) if node.level else node.module
            )
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "maniflex":
                yield name.split(".")[1] if "." in name else "maniflex"


def allowed(importer: str, target: str) -> bool:
    if target not in DEPTH:
        return DEPTH[importer] == 0  # a public name from the root: only what stands above all may use it
    return importer == target or DEPTH[importer] < DEPTH[target] or DEPTH[target] == LEAVES


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_stands_below_it(path: Path) -> None:
    package = package_of(path)
    assert package in DEPTH, f"{package} has no place in LAYERS"

    types_only = {target for name, target in TYPES_ONLY if path == SOURCE / name}
    upward = sorted({t for t in imported(path) if not allowed(package, t) and t not in types_only})

    assert not upward, f"{path.relative_to(SOURCE)} may not import {', '.join(upward)}"
