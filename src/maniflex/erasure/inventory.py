"""What an application keeps of persons, model by model: which fields are personal, and which look like it.

Give `inventory` the models of an application; each model and each of its fields is in what comes out once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from maniflex.erasure.plan import Treatment
from maniflex.model.meta import FieldMeta, Kind, ModelMeta, RelationKind

_CONTACTS = ("email", "mail", "phone", "mobile", "fax", "address", "street")
_BIRTH = ("birth", "birthday", "birthdate")
_IDENTITY = ("surname", "firstname", "lastname", "passport", "iban", "ssn")
_WORDS = frozenset((*_CONTACTS, *_BIRTH, *_IDENTITY))
_NAMES = frozenset(("first_name", "last_name", "full_name", "given_name", "family_name"))
_TELLING = frozenset({Kind.TEXT, Kind.JSON, Kind.BYTES})  # kinds that can say something of a person
_DATES = frozenset({Kind.DATE, Kind.DATETIME})


@dataclass(frozen=True, slots=True)
class ModelInventory:
    """What one model keeps of persons."""

    model: str
    subject: str | None  # the path to the person
    treatment: str | None  # what an erasure makes of its records
    reason: str | None  # why they are kept
    personal: tuple[str, ...]
    texts: tuple[str, ...]  # that can say something, and are not personal
    others: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The entry in plain types."""
        return {name: getattr(self, name) for name in self.__slots__}


def inventory(metas: Iterable[ModelMeta]) -> list[ModelInventory]:
    """An entry for each model, by name."""
    return [_entry(meta) for meta in sorted(metas, key=lambda meta: meta.name)]


def _entry(meta: ModelMeta) -> ModelInventory:
    options = meta.options
    personal = [f.name for f in meta.fields if f.personal]
    keys = {r.key for r in meta.relations.values() if r.kind is RelationKind.BELONGS_TO} | {"id"}
    texts = [f.name for f in meta.fields if f.name not in (*personal, *keys) and _can_tell(f)]
    return ModelInventory(
        meta.name,
        options.subject,
        None if options.subject is None else options.on_erase or str(Treatment.ANONYMISE),
        options.keep_reason,
        tuple(personal),
        tuple(texts),
        tuple(f.name for f in meta.fields if f.name not in (*personal, *texts)),
    )


def _can_tell(f: FieldMeta) -> bool:
    return f.kind in _TELLING and f.enum is None


def looks_personal(f: FieldMeta) -> bool:
    """Whether a field is called like something of a person, and can hold it."""
    words = set(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", f.name).lower()))
    is_birth = not words.isdisjoint(_BIRTH)
    if not (_can_tell(f) or (is_birth and f.kind in _DATES)):
        return False
    return not words.isdisjoint(_WORDS) or f.name in _NAMES


def forgotten_fields(metas: Iterable[ModelMeta]) -> Iterator[tuple[ModelMeta, FieldMeta]]:
    """Fields that are called like something of a person and are not personal."""
    for meta in metas:
        if meta.options.query is None and meta.options.backend is None:
            yield from ((meta, f) for f in meta.fields if not f.personal and looks_personal(f))


def forgotten_models(metas: Iterable[ModelMeta]) -> Iterator[tuple[ModelMeta, str]]:
    """Models that refer to one with a subject and have none, each with the name of the relation."""
    by_name = {meta.name: meta for meta in metas}
    for meta in by_name.values():
        if meta.options.subject is not None or meta.options.query is not None:
            continue
        for relation in meta.relations.values():
            target = by_name.get(relation.target)
            leads = relation.kind is RelationKind.BELONGS_TO and target is not None
            if leads and target is not None and target.options.subject is not None:
                yield meta, relation.name
                break
