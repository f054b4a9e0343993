"""The templates of the panel, the dataclass that each is given, and values of such classes."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import maniflex.admin
from maniflex.admin.inlines import InlineChange
from maniflex.admin.lists import FilterControl
from maniflex.admin.widgets import Cell, Control, FileItem

TEMPLATES = Path(maniflex.admin.__file__).parent / "templates"
HOSTILE = '"><script>window.marker=1</script>'
# These choose the markup of one value by their `kind`: each kind is made once.
_KINDS: dict[type, tuple[str, ...]] = {}
_LATE = {"FileItem": FileItem, "InlineChange": InlineChange, "Mapping": Mapping}  # imported for types alone


def replaceable() -> list[str]:
    """Every template that an application can replace; those with an underscore are parts of others."""
    paths = [path.relative_to(TEMPLATES) for path in TEMPLATES.rglob("*.html")]
    return sorted(map(str, (path for path in paths if not path.name.startswith("_"))))


def views() -> dict[str, type]:
    """The class for each template, by what its docstring says."""
    classes = {}
    for module in pkgutil.walk_packages(maniflex.admin.__path__, "maniflex.admin."):
        for value in vars(importlib.import_module(module.name)).values():
            match = re.match(r"What `([a-z_/]+\.html)` is given", (getattr(value, "__doc__", "") or ""))
            if match and isinstance(value, type):
                classes[match[1]] = value
    return classes


def kinds_of(cls: type) -> tuple[str, ...]:
    """The kinds that the markup of a cell or a control is chosen by, as the templates name them."""
    if not _KINDS:
        for one, name in ((Cell, "_cells.html"), (Control, "_controls.html"), (FilterControl, "list.html")):
            text = (TEMPLATES / name).read_text()
            chosen = re.findall(r"(?:cell|control)\.kind (?:==|in) (\"[a-z0-9]+\"|\([^)]+\))", text)
            kinds = [kind for part in chosen for kind in re.findall(r'"([a-z0-9]+)"', part)]
            _KINDS[one] = (*dict.fromkeys(kinds), "text")
    return _KINDS.get(cls, ())


class AnyKey(dict[str, Any]):
    """A mapping that has every key: which ones there are is no part of its type."""

    def __init__(self, value: Any) -> None:
        super().__init__({HOSTILE: value})
        self._value = value

    def __missing__(self, key: str) -> Any:
        return self._value


class Entries(list[Any]):
    """A list that is as long as the one it is walked beside, as the columns of rows are."""

    def __getitem__(self, place: Any) -> Any:
        return super().__getitem__(min(place, len(self) - 1) if isinstance(place, int) else place)


def make(kind: Any, *, full: bool, inside: tuple[type, ...] = ()) -> Any:
    """A value of a type: with one entry in each list, or with none."""
    origin, parts = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return make_one(kind, full=full, inside=inside)
    if origin in (Union, types.UnionType):
        return make(parts[0], full=full, inside=inside) if full else None
    if origin is Literal:
        return parts[0]
    if origin is tuple:
        return () if parts[-1] is Ellipsis else tuple(make(part, full=full, inside=inside) for part in parts)
    if origin is not None and issubclass(origin, Mapping):
        return AnyKey(make(parts[1], full=full, inside=inside))
    if origin is not None and issubclass(origin, Sequence):
        return Entries(_entries(parts[0], inside)) if full else []
    plain = {str: HOSTILE if full else "", int: 7 if full else 0, float: 7.5, bool: full, type(None): None}
    return plain.get(kind, HOSTILE if full else "")


def make_one(cls: Any, /, *, full: bool, inside: tuple[type, ...] = (), **own: Any) -> Any:
    """An object of a dataclass; a class is not made inside of itself."""
    hints = hints_of(cls)
    values = {
        one.name: make(hints[one.name], full=full, inside=(*inside, cls))
        for one in dataclasses.fields(cls)
        if one.name not in own
    }
    return cls(**values, **own)


def _entries(kind: Any, inside: tuple[type, ...]) -> Iterator[Any]:
    if kind in inside:
        return
    for name in kinds_of(kind) if isinstance(kind, type) else ():
        yield make_one(kind, full=True, inside=inside, kind=name)
    if not (isinstance(kind, type) and kinds_of(kind)):
        yield make(kind, full=True, inside=inside)


def parts_of(kind: Any) -> Iterator[type]:
    """The dataclasses that a type mentions, each once, in the order of its fields."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        yield kind
        return
    for part in get_args(kind):
        yield from parts_of(part)


def hints_of(cls: type) -> dict[str, Any]:
    """The types of the fields of a dataclass."""
    return get_type_hints(cls, localns=dict(_LATE))


def comments_of(cls: type) -> dict[str, str]:
    """What the source says beside each field."""
    lines = re.findall(r"^    (\w+): [^#\n]+?(?:  # (.+))?$", inspect.getsource(cls), flags=re.MULTILINE)
    return {name: comment for name, comment in lines if comment}
