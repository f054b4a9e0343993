"""Every factory of the catalogue, found in `maniflex.middleware`, and the steps its entries stand on."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, get_type_hints

import maniflex.middleware
from maniflex.pipeline.entry import Entry
from maniflex.pipeline.registration import BESIDE_STEPS

Factory = Callable[..., Any]


def sections() -> Iterator[tuple[str, ModuleType]]:
    """What users import from `maniflex.middleware`: a module or package for each section."""
    for found in pkgutil.iter_modules(maniflex.middleware.__path__):
        yield found.name, import_module(f"maniflex.middleware.{found.name}")


def factories() -> dict[str, Factory]:
    """Every public function that makes an entry, as users write it: `auth.jwt`."""
    return {
        f"{section}.{name}": value
        for section, module in sections()
        for name, value in sorted(vars(module).items())
        if not name.startswith("_") and inspect.isfunction(value) and makes_entry(value)
        if section == "openapi" or name in getattr(module, "__all__", [name])
    }


def makes_entry(factory: Factory) -> bool:
    made = get_type_hints(factory).get("return")
    return inspect.isclass(made) and issubclass(made, Entry)


def class_of(name: str) -> type[Entry]:
    """The class of an entry: the one of its name, or the one that its factory says it makes."""
    named = [cls for cls in entry_classes() if vars(cls).get("name") == name]
    made: type[Entry] = get_type_hints(factories()[name])["return"]
    return named[0] if named else made


def homes_of(name: str) -> Mapping[str, Any]:
    """The steps an entry can stand on, the usual one first, and its positions there."""
    return {home: at for home, at in class_of(name).homes.items() if home not in BESIDE_STEPS}


def entry_classes(cls: type[Entry] = Entry) -> Iterator[type[Entry]]:
    """Every class of entries that was imported."""
    for below in cls.__subclasses__():
        yield below
        yield from entry_classes(below)
