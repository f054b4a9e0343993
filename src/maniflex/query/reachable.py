"""Which models relations lead to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from maniflex.model.history_row import is_history
from maniflex.model.meta import ModelMeta, RelationMeta


def related_models(model: ModelMeta, models: Mapping[str, ModelMeta]) -> Iterator[ModelMeta]:
    """The models that relations lead to from this one, nearest first; then those that refer to it."""
    visited_names = {model.name}
    for meta in reachable_models(model, models):
        visited_names.add(meta.name)
        yield meta
    for meta in models.values():
        refers = any(r.target == model.name for r in meta.relations.values())
        # A history says whose its rows are by the record alone; its own columns are about the author.
        if refers and meta.name not in visited_names and not is_history(meta):
            yield meta


def reachable_models(model: ModelMeta, models: Mapping[str, ModelMeta]) -> Iterator[ModelMeta]:
    """The models that relations lead to from this one, nearest first."""
    visited_names = {model.name}
    ahead = [model]
    for meta in ahead:  # grows while it is read
        for relation in meta.relations.values():
            for name in (relation.through, relation.target):
                if name is not None and name not in visited_names and name in models:
                    visited_names.add(name)
                    ahead.append(models[name])
                    yield models[name]


def models_along(path: Iterable[RelationMeta]) -> Iterator[str]:
    """The names of the models that a path of relations passes."""
    for relation in path:
        if relation.through is not None:
            yield relation.through
        yield relation.target
