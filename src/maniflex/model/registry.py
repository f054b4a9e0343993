"""The models of one application: open while declaring, sealed when it starts.

The only place where models meet. `register` takes classes, options right after the class they
belong to, and lists of both; `seal` reads every class, joins them and raises one `DeclarationError`
with every problem of every model. Once sealed nothing can be added any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Any

from maniflex._names import did_you_mean, is_identifier
from maniflex.errors import DeclarationError
from maniflex.model.base import Model
from maniflex.model.class_body import merged_options
from maniflex.model.meta import ModelMeta, ModelOptions
from maniflex.model.resolve import resolve
from maniflex.model.scan import scan

Registration = tuple[type[Model], ModelOptions | None]


def name_of(model: type[Model] | str) -> str:
    """The name of a model that a declaration gives as a class or by its name."""
    return model if isinstance(model, str) else model.__name__


def unknown_model(given: type[Model] | str, registered: Mapping[str, ModelMeta]) -> str:
    """Why a model that a declaration names is none of the registered ones; empty for one of them."""
    name = name_of(given)
    meta = registered.get(name)
    if meta is None:
        return f"no model named {name!r} is registered{did_you_mean(name, registered)}"
    if isinstance(given, str) or meta.cls is given:
        return ""
    homes = f"{given.__module__}.{given.__qualname__}", f"{meta.cls.__module__}.{meta.cls.__qualname__}"
    return f"{homes[0]} is not registered; the model named {name!r} is {homes[1]}"


class Registry:
    """Model classes and, once sealed, their `ModelMeta`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._registrations: list[Registration] = []
        self._models: dict[str, ModelMeta] | None = None

    @property
    def sealed(self) -> bool:
        return self._models is not None

    def register(self, *arguments: Any) -> None:
        """Add classes, options and lists of both; all of them, or none when one is not understood."""
        registrations = self.flatten(arguments)
        with self._lock:
            self._refuse_when_sealed(registrations)
            self._registrations.extend(registrations)

    @staticmethod
    def flatten(arguments: Iterable[Any]) -> list[Registration]:
        """Each class with the options that directly follow it; `DeclarationError` for anything else."""
        problems: list[str] = []
        registrations = _flatten(arguments, problems)
        if problems:
            raise DeclarationError(*problems)
        return registrations

    def seal(self) -> tuple[ModelMeta, ...]:
        """Read and join all models; from here on the registry does not change."""
        with self._lock:
            if self._models is None:
                self._models = _read(self._registrations)
            return tuple(self._models.values())

    def options(self) -> Iterator[tuple[type[Model], ModelOptions]]:
        """Every class so far, with its options."""
        for cls, options in tuple(self._registrations):
            yield cls, merged_options(cls.__options__, options)

    def __contains__(self, model: object) -> bool:
        return any(cls is model for cls, _ in tuple(self._registrations))

    def __len__(self) -> int:
        return len(self._registrations)

    def _refuse_when_sealed(self, registrations: list[Registration]) -> None:
        if self._models is not None:
            names = ", ".join(cls.__name__ for cls, _ in registrations) or "nothing"
            raise DeclarationError(f"{names}: the server has started, so no model can be registered any more")


def _flatten(arguments: Iterable[Any], problems: list[str]) -> list[Registration]:
    """One list; options never reach out of the list they stand in."""
    registrations: list[Registration] = []
    waiting = False  # the argument before was a class that has no options yet
    for position, argument in enumerate(arguments, start=1):
        if isinstance(argument, ModelOptions):
            if waiting:
                registrations[-1] = (registrations[-1][0], argument)
            else:
                problems.append(f"register: the ModelOptions at position {position} follow no model")
            waiting = False
        elif isinstance(argument, (list, tuple)):
            registrations.extend(_flatten(argument, problems))
            waiting = False
        else:
            trouble = _class_trouble(argument)
            if trouble:
                problems.append(f"register: {trouble}")
            else:
                registrations.append((argument, None))
            waiting = not trouble
    return registrations


def _class_trouble(argument: Any) -> str | None:
    if isinstance(argument, Model):
        return f"give the class {type(argument).__name__}, not an instance of it"
    if not isinstance(argument, type):
        return f"{argument!r} is not a model class"
    if not issubclass(argument, Model):
        return f"{argument.__name__} is not a model; inherit from maniflex.Model"
    if argument.__abstract__:
        return f"{argument.__name__} is abstract; register the models that inherit from it"
    return None


def _read(registrations: list[Registration]) -> dict[str, ModelMeta]:
    problems: list[str] = []
    metas: dict[str, ModelMeta] = {}
    names: set[str] = set()
    unread = False
    for cls, options in registrations:
        if cls.__name__ in names:
            problems.append(f"{cls.__name__}: two models have this name, or one is registered twice")
            continue
        names.add(cls.__name__)
        meta, class_problems = scan(cls, options)
        problems += class_problems
        unread = unread or meta is None
        if meta is not None:
            metas[meta.name] = meta
    problems += _table_problems(metas.values())
    # With a class missing, "no model named ..." would only blame its neighbours.
    resolved_metas, wrong = resolve(metas) if not unread else (metas, [])
    if problems or wrong:
        raise DeclarationError(*dict.fromkeys([*problems, *wrong]))
    return resolved_metas


def _table_problems(metas: Iterable[ModelMeta]) -> Iterator[str]:
    models_by_table: dict[str, str] = {}
    for meta in metas:
        key = meta.table.lower()
        if key in models_by_table:
            yield f"{meta.name}: shares the table {meta.table!r} with {models_by_table[key]}; set table="
        models_by_table.setdefault(key, meta.name)
        if meta.options.table is None and not is_identifier(meta.table):
            yield f"{meta.name}: {meta.table!r} cannot name a table; set table="
