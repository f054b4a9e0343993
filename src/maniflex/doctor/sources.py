"""Where a declaration stands: file and line of models, fields and functions."""

from __future__ import annotations

import ast
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from maniflex.model.base import Model

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
