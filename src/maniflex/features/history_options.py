"""What models say of their histories: the problems of these options, what is written, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from maniflex._settings import read_duration
from maniflex.db.history import HistoryWriter
from maniflex.db.store import Store
from maniflex.model.base import Model
from maniflex.model.history_row import history_model, is_versioned
from maniflex.model.meta import ModelMeta, ModelOptions
from maniflex.query.query import Models, field_along
from maniflex.sql.bindings import BindingPlace

_WITHOUT_VERSIONS = ("history_table", "history_list", "history_restore", "history_scope", "history_retention")


def option_problems(model: str, options: ModelOptions) -> Iterator[str]:
    """The problems of history options by themselves, also of models whose fields cannot be read."""
    if not is_versioned(options):
        for name in _WITHOUT_VERSIONS:
            if getattr(options, name) is not None:
                yield f"{model}: {name}= means nothing without versioned=True"
    elif options.history_retention is not None:
        try:
            how_long_kept(options, timedelta(0))
        except ValueError as error:
            yield f"{model}: history_retention: {error}"
        if options.versioned_diff_only:
            yield (
                f"{model}: history_retention= needs snapshots;"
                " with versioned_diff_only=True the past is replayed from all diffs"
            )


def history_problems(meta: ModelMeta, models: Models) -> Iterator[str]:
    """The problems of a model's history that have to do with its fields."""
    if not is_versioned(meta.options):
        return
    for name in _scope_names(meta.options):
        if field_along(meta, name, models) is None:
            yield f"{meta.name}: history_scope: {name!r} is no field, nor one of a record that it belongs to"
    for field in meta.fields:
        if field.api == "history" and "file" in field.extra:
            yield f"{meta.name}.{field.name}: its route would be that of the history; give it another alias="


def keep_histories(stores: Mapping[type[Model], Store], scope_names: Iterable[str]) -> None:
    """Let the changes of every versioned model be written to its history.

    `scope_names` are the fields, and the paths to fields, by which rules of the server bind rows.
    """
    names = tuple(scope_names)
    for store in list(stores.values()):
        if is_versioned(store.meta.options) and history_model(store.meta.cls) in stores:
            history = stores[history_model(store.meta.cls)]
            history.sql.binding_places = tuple(_binding_places(store, history, names))
            store.seam.listen(HistoryWriter(store, history, snapshots=keeps_snapshots(store.meta.options)))


def _binding_places(store: Store, history: Store, names: Iterable[str]) -> Iterator[BindingPlace]:
    """What versions are stamped with; what lies in another database cannot bind them."""
    here = {meta.name: meta for meta in store.models.values() if history.sql.has_peer(meta.name)}
    for name in dict.fromkeys((*names, *_scope_names(store.meta.options))):
        place = field_along(store.meta, name, here)
        if place is not None and BindingPlace(*place).is_written:
            yield BindingPlace(*place)


def _scope_names(options: ModelOptions) -> Sequence[str]:
    names = options.history_scope
    return (names,) if isinstance(names, str) else tuple(map(str, names or ()))


def how_long_kept(options: ModelOptions, default: timedelta) -> timedelta:
    """How long versions are kept; zero for good. `ValueError` for what is no duration."""
    if options.versioned_diff_only:
        return timedelta(0)
    value: Any = options.history_retention
    if value is None:
        return default
    duration = read_duration(value) if isinstance(value, str) else value
    if not isinstance(duration, timedelta) or duration < timedelta(0):
        raise ValueError(f"{value!r} is not a duration such as 2y, 90d or timedelta(days=90)")
    return duration


def keeps_snapshots(options: ModelOptions) -> bool:
    """Whether the versions of a model have the whole record with them."""
    return not options.versioned_diff_only
