"""What can be wrong with the declarations of computed fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.model.registry import unknown_model
from maniflex.pipeline.registration import takes
from maniflex.pipeline.rules.transforms import Computed

ComputedFields = Mapping[type[Model], Sequence[Computed]]


def computed_problems(models: Sequence[ModelMeta] | None, computed: ComputedFields) -> Iterator[str]:
    """Functions that cannot be called, and names that are taken; without `models`, the functions alone."""
    for cls, fields in computed.items():
        for field in fields:
            if not takes(field.fn, 2 if field.takes_context else 1):
                yield (
                    f"computed {cls.__name__}.{field.name}: it is called with (record) or (ctx, record),"
                    " neither of which it takes"
                )
    if models is not None:
        yield from _name_problems({meta.name: meta for meta in models}, computed)


def _name_problems(models: Mapping[str, ModelMeta], computed: ComputedFields) -> Iterator[str]:
    for cls, fields in computed.items():
        if problem := unknown_model(cls, models):
            yield f"computed {cls.__name__}.{fields[0].name}: {problem}"
            continue
        meta = models[cls.__name__]
        names = {*meta.by_api, *meta.relations}
        for field in fields:
            if field.name in names:
                yield f"computed {meta.name}.{field.name}: there is a field of that name already"
            names.add(field.name)
