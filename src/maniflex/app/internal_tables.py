"""The tables that features keep for themselves, such as runs and schedules; they have guards of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta, ModelOptions, RelationKind
from maniflex.model.registry import Registry


class InternalTables:
    """Registers each of them once, however often the server is sealed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._models: set[type[Model]] = set()

    def register(self, model: type[Model], options: ModelOptions | None) -> None:
        if model not in self._models:
            self._registry.register(model, *(() if options is None else (options,)))
            self._models.add(model)

    def add_registered(self, models: Sequence[ModelMeta]) -> None:
        """Those of catalogue entries, which are registered by their entries."""
        self._models.update(meta.cls for meta in models if meta.is_internal)

    @property
    def models(self) -> frozenset[type[Model]]:
        """Those that are registered."""
        return frozenset(self._models)

    def relation_problems(self, models: Sequence[ModelMeta]) -> Iterator[str]:
        """Relations into internal tables: what comes along with another record passes no guard of theirs."""
        names = {cls.__name__ for cls in self._models}
        for meta in (meta for meta in models if meta.cls not in self._models):
            for relation in meta.relations.values():
                if not {relation.target, relation.through} & names:
                    continue
                if relation.kind is RelationKind.BELONGS_TO:
                    hint = f"{meta.name}.{relation.key}: keep the id as a plain field: relation=None"
                else:
                    hint = f"{meta.name}.{relation.name}: leave it out, and look the records up by id"
                yield f"{hint}; no model refers to {relation.target}, whose guard it would go around"
