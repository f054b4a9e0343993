"""Templates of operations and transfers are rendered from the dataclasses that their docstrings promise."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from jinja2 import Environment, nodes

import maniflex.admin
from maniflex.admin.layout import Layout
from maniflex.admin.operations.tabs import Tab
from maniflex.admin.rendering import make_environment, render
from maniflex.admin.texts import Texts

TEMPLATES = Path(maniflex.admin.__file__).parent / "templates"
OURS = sorted(
    str(path.relative_to(TEMPLATES))
    for path in TEMPLATES.rglob("*.html")
    if path.parent.name == "operations" or path.name.startswith(("transfer", "export"))
    if not path.name.startswith("_")
)
HOSTILE = '"><script>window.marker=1</script>'


def views() -> dict[str, type]:
    """The class for each template, by what its docstring says."""
    classes = {}
    for module in pkgutil.walk_packages(maniflex.admin.__path__, "maniflex.admin."):
        for value in vars(importlib.import_module(module.name)).values():
            match = re.match(r"What `([a-z_/]+\.html)` is given", (getattr(value, "__doc__", "") or ""))
            if match and isinstance(value, type):
                classes[match[1]] = value
    return classes


class AnyKey(dict[str, Any]):
    """A mapping that has every key: which ones there are is no part of its type."""

    def __init__(self, value: Any) -> None:
        super().__init__({HOSTILE: value})
        self._value = value

    def __missing__(self, key: str) -> Any:
        return self._value


def make(kind: Any, *, full: bool) -> Any:
    """A value of a type: with one entry in each list, or with none."""
    origin, parts = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{f.name: make(hints[f.name], full=full) for f in dataclasses.fields(kind)})  # type: ignore[operator]
    if origin in (Union, types.UnionType):
        return make(parts[0], full=full) if full else None
    if origin is Literal:
        return parts[0]
    if origin is tuple:
        return () if parts[-1] is Ellipsis else tuple(make(part, full=full) for part in parts)
    if origin is not None and issubclass(origin, Mapping):
        return AnyKey(make(parts[1], full=full))
    if origin is not None and issubclass(origin, Sequence):
        return [make(parts[0], full=full)] if full else []
    plain = {str: HOSTILE if full else "", int: 7 if full else 0, float: 7.5, bool: full, type(None): None}
    return plain.get(kind, HOSTILE if full else "")


def attributes(environment: Environment, template: str) -> set[str]:
    """What a template and the parts it includes ask of `view`."""
    source = (TEMPLATES / template).read_text()
    tree = environment.parse(source)
    names = {
        node.attr
        for node in tree.find_all(nodes.Getattr)
        if isinstance(node.node, nodes.Name) and node.node.name == "view"
    }
    has_own_view = "{% with view" in source  # its parts are given another one
    for part in () if has_own_view else re.findall(r'{%-? include "([^"]+)"', source):
        names |= attributes(environment, part)
    return names


@pytest.mark.parametrize("template", OURS)
def test_a_template_is_rendered_from_its_dataclass(template: str) -> None:
    environment, view = make_environment(None), views().get(template)
    assert view is not None, f"no class says that it is what `{template}` is given"
    names = {name for name in dir(view) if not name.startswith("_")} | set(get_type_hints(view))
    assert attributes(environment, template) <= names
    for full in (True, False):
        page = render(
            environment,
            template,
            {
                "layout": make(Layout, full=full),
                "view": make(view, full=full),
                "t": Texts({}),
                "tabs": [make(Tab, full=full)],
            },
        )
        assert "<main" in page or template.startswith("card")
        assert "<script>window" not in page
