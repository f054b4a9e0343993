"""Which records are about a person, and what an erasure makes of them: `subject=`, `personal`, `on_erase=`.

Give `problems_of` and `plan_of` the models of a sealed server. Every contradiction in what they declare is
told at the start; a plan has the models whose records come first when a person is erased first in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from maniflex._json import encode_json
from maniflex._names import did_you_mean
from maniflex.db.store import Store
from maniflex.errors import ValidationFailed
from maniflex.model.base import Model
from maniflex.model.history_row import history_model, is_versioned
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind, RelationMeta
from maniflex.query.query import Models, field_along

_OWN = ("id", "created_at", "updated_at")


class Treatment(StrEnum):
    """What an erasure makes of a record."""

    ANONYMISE = "anonymise"
    DELETE = "delete"
    KEEP = "keep"


@dataclass(frozen=True, slots=True, eq=False)
class SubjectModel:
    """A model whose records are about a person."""

    store: Store
    history: Store | None
    path: tuple[RelationMeta, ...]  # to the record that names the person
    field: FieldMeta  # that names it there
    treatment: Treatment
    personal: tuple[FieldMeta, ...]
    parent: SubjectModel | None = None  # the records that its path leads through first

    @property
    def meta(self) -> ModelMeta:
        return self.store.meta

    @property
    def key(self) -> FieldMeta:
        """The field of the record itself that leads to the person."""
        return self.meta.by_name[self.path[0].key or ""] if self.path else self.field

    @property
    def is_person(self) -> bool:
        """Whether a record is the person's because of its own id."""
        return not self.path and self.field.name == "id"

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names that the key has, and had, in stored JSON."""
        key = self.key
        return tuple(dict.fromkeys(n for n in (key.api, key.name, key.column, key.renamed_from) if n))

    @property
    def names(self) -> frozenset[str]:
        """The names that personal values have in stored JSON."""
        names = {n for f in self.personal for n in (f.api, f.name, f.column, f.renamed_from) if n}
        return frozenset(names - {f.api for f in self.meta.fields if not f.personal})

    def erased_values(self, record_id: str) -> dict[str, Any]:
        """What the personal fields of a record become, by attribute."""
        return {f.name: _erased_value(self.meta, f, record_id) for f in self.personal}

    def erased_json(self, record_id: str) -> dict[str, bytes]:
        """The erased values as stored JSON has them, which are nobody's; by name."""
        values = self.erased_values(record_id)
        return {
            name: encode_json(values[f.name]).encode()
            for f in self.personal
            for name in (f.api, f.name, f.column)
            if values[f.name] is not None
        }

    @property
    def is_alike(self) -> bool:
        """Whether the erased values of all records are the same."""
        own = [f for f in self.personal if callable(f.extra.get("erased")) or f.encrypted is not None]
        return not any(f.extra.get("erased") is not None for f in own)


def plan_of(stores: Mapping[type[Model], Store]) -> tuple[SubjectModel, ...]:
    """The models with a subject; those that refer to others come before them.

    Else the delete of a record would empty the keys, or take along the rows, by which others are found.
    """
    models = {store.meta.name: store.meta for store in stores.values()}
    plan = []
    for store in stores.values():
        meta = store.meta
        place = None if meta.options.subject is None else field_along(meta, meta.options.subject, models)
        if place is None:
            continue
        treatment = Treatment(meta.options.on_erase or Treatment.ANONYMISE)
        plan.append(_subject_model(store, *place, treatment, stores))
    return tuple(_children_first(sorted(plan, key=lambda one: -len(one.path))))


def _subject_model(
    store: Store,
    path: tuple[RelationMeta, ...],
    field: FieldMeta,
    treatment: Treatment,
    stores: Mapping[type[Model], Store],
) -> SubjectModel:
    personal = tuple(f for f in store.meta.fields if f.personal)
    history, parent = stores.get(history_model(store.meta.cls)), None
    if path:
        target = store.stores_by_model[path[0].target]
        parent = _subject_model(target, path[1:], field, treatment, stores)
    return SubjectModel(store, history, path, field, treatment, personal, parent)


def _children_first(plan: Sequence[SubjectModel]) -> Iterator[SubjectModel]:
    """The models in an order in which none comes after one that it refers to, where they are in no circle."""
    left = list(plan)
    while left:
        one = next((one for one in left if not _is_referred_to(one, left)), left[0])
        left.remove(one)
        yield one


def _is_referred_to(one: SubjectModel, others: Iterable[SubjectModel]) -> bool:
    return any(
        relation.kind is RelationKind.BELONGS_TO and relation.target == one.meta.name
        for other in others
        if other is not one
        for relation in other.meta.relations.values()
    )


def problems_of(metas: Iterable[ModelMeta]) -> Iterator[str]:
    """Everything wrong with what these models say about erasing."""
    models = {meta.name: meta for meta in metas}
    for meta in models.values():
        for f in meta.fields:
            if "erased" in f.extra and not f.personal:
                yield f"{meta.name}.{f.name}: erased= means nothing without personal=True"
        if meta.options.subject is None:
            yield from _problems_without_subject(meta)
        else:
            yield from _subject_problems(meta, models)
            yield from _treatment_problems(meta)
            for f in meta.fields:
                if f.personal:
                    yield from (f"{meta.name}.{f.name}: {text}" for text in _field_problems(meta, f, models))


def _problems_without_subject(meta: ModelMeta) -> Iterator[str]:
    for f in meta.fields:
        if f.personal:
            yield f"{meta.name}.{f.name}: personal needs subject= of the model, which says whose data it is"
    for name in ("on_erase", "keep_reason"):
        if getattr(meta.options, name) is not None:
            yield f"{meta.name}: {name}= means nothing without subject="


def _subject_problems(meta: ModelMeta, models: Models) -> Iterator[str]:
    name = meta.options.subject
    place = field_along(meta, name, models) if isinstance(name, str) else None
    if place is None:
        hint = did_you_mean(str(name), meta.by_name)
        yield f"{meta.name}: subject: {name!r} is no field, nor one of a record that it belongs to{hint}"
        return
    path, field = place
    if field.kind is not Kind.TEXT or field.encrypted is not None:
        yield f"{meta.name}: subject: {name!r} must be a plain text field, which can be looked for"
    steps = [meta, *(models[relation.target] for relation in path)]
    keys = [*(owner.by_name[r.key or ""] for owner, r in zip(steps, path, strict=False)), field]
    if keys[0].secret and is_versioned(meta.options):
        yield (
            f"{meta.name}: subject: {keys[0].name} is hidden, so histories do not say whose data a deleted"
            " record was; let answers show it, as a readonly field"
        )
    for key in keys:
        if key.personal:
            yield f"{meta.name}: subject: {key.name} is personal, so nobody would be found once it is erased"
    for step in steps[1:]:
        if step.options.query is not None or step.options.backend is not None:
            yield f"{meta.name}: subject: {step.name} has no table, so no way leads through it"


def _treatment_problems(meta: ModelMeta) -> Iterator[str]:
    action: Any = meta.options.on_erase
    reason: Any = meta.options.keep_reason
    if action is not None and action not in tuple(Treatment):
        yield f"{meta.name}: unknown on_erase {action!r}; use {', '.join(Treatment)}" + did_you_mean(
            str(action), tuple(Treatment)
        )
    elif action == Treatment.KEEP and not (isinstance(reason, str) and reason.strip()):
        yield f"{meta.name}: on_erase='keep' needs keep_reason=, which reports of erasures show"
    elif action != Treatment.KEEP and reason is not None:
        yield f"{meta.name}: keep_reason= goes with on_erase='keep'"


def _field_problems(meta: ModelMeta, f: FieldMeta, models: Models) -> Iterator[str]:
    marker = meta.soft_delete
    if f.name in (*_OWN, marker.field if marker else "id", meta.hold or "id"):
        yield "cannot be personal, because the framework needs it"
        return
    replacement = f.extra.get("erased")
    if "erased" not in f.extra:
        if not f.nullable:
            yield "is personal and never empty: say erased=, which takes the place of its values"
        return
    if callable(replacement):
        return
    if replacement is None and not f.nullable:
        yield "erased=None does not fit, because the field is never empty"
    if replacement is not None:
        try:
            _fit(meta, f, replacement)
        except ValidationFailed as error:
            yield f"erased={replacement!r} does not fit: {error.message}"
        in_index = any(index.unique and f.name in index.columns for index in meta.indices)
        if f.unique or in_index:
            yield "is unique, so erased= must be a function of the id: erased=lambda id: ..."


def _erased_value(meta: ModelMeta, f: FieldMeta, record_id: str) -> Any:
    replacement = f.extra.get("erased")
    value = replacement(record_id) if callable(replacement) else replacement
    return None if value is None else _fit(meta, f, value)


def _fit(meta: ModelMeta, f: FieldMeta, value: Any) -> Any:
    """The value as the field takes it."""
    return meta.validator.patch_from_code({f.name: value})[f.name]
