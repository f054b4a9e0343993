"""Which related records a client can reach from a model, and by which dotted names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from maniflex.model.meta import ModelMeta, RelationKind, RelationMeta
from maniflex.pipeline.operation import Operation
from maniflex.query.query import reachable_models, shows


@dataclass(frozen=True, slots=True)
class Reachable:
    """All models, and where each of them is stored."""

    models: Mapping[str, ModelMeta]
    home: Callable[[ModelMeta], object]

    def joinable_paths(self, model: ModelMeta, depth: int) -> Iterator[tuple[str, ModelMeta, bool]]:
        """The paths filters and sorts can name: a statement reaches no other database."""
        return self._paths(model, depth, self._joins)

    def includable_paths(self, model: ModelMeta, depth: int) -> Iterator[str]:
        """The paths `include` can name; a junction has to be in the database of its records."""
        return (path[:-1] for path, _, _ in self._paths(model, depth, self._loads) if path)

    def asks_backend(self, model: ModelMeta, operation: Operation) -> bool:
        """Whether a backend answers the operation, or one that includes and keys of the model lead to."""
        asked_models = [model]
        if operation in (Operation.LIST, Operation.READ):
            asked_models += reachable_models(model, self.models)
        elif operation in (Operation.CREATE, Operation.UPDATE):
            keys = [r for r in model.relations.values() if r.kind is RelationKind.BELONGS_TO]
            asked_models += [self.models[r.target] for r in keys if r.target in self.models]
        return any(one.options.backend is not None for one in asked_models)

    def _paths(
        self, model: ModelMeta, depth: int, follow: Callable[[ModelMeta, RelationMeta], bool]
    ) -> Iterator[tuple[str, ModelMeta, bool]]:
        """Every model a dotted name can reach, with the path to it and whether it leads to one record."""
        level = [("", model, True)]
        while level:
            yield from level
            if not depth:
                return
            depth -= 1
            level = [
                (f"{prefix}{r.name}.", self.models[r.target], single and r.kind == "belongs_to")
                for prefix, at, single in level
                for r in at.relations.values()
                if shows(at, r, self.models) and follow(at, r)
            ]

    def _loads(self, model: ModelMeta, relation: RelationMeta) -> bool:
        return relation.through is None or self._together(relation.through, relation.target)

    def _joins(self, model: ModelMeta, relation: RelationMeta) -> bool:
        return self._loads(model, relation) and self._together(model.name, relation.target)

    def _together(self, one: str, other: str) -> bool:
        return self.home(self.models[one]) is self.home(self.models[other])
