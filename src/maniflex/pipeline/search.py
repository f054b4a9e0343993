"""Search over several models at once: `ctx.search` and the search endpoint are this.

Hits are merged by score. Scores of one database are comparable as far as its ranking goes: each table
has statistics of its own, so a word counts for more where it is rarer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from maniflex.db.budget import Budget
from maniflex.db.store import Store
from maniflex.errors import DeclarationError, InvalidQuery, UnusableScope
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta
from maniflex.pipeline.scope import find_unbound
from maniflex.query.query import Scope, SearchText
from maniflex.sql.search import searchable_fields

if TYPE_CHECKING:
    from maniflex.pipeline.runtime import Runtime

DEFAULT_HITS = 20
_LONGEST_SNIPPET = 240

Models = type[Model] | str | Iterable[type[Model] | str]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A record that matches: of which model, with an excerpt (plain text) and how well."""

    model: str
    id: str
    snippet: str
    score: float


async def search(
    runtime: Runtime,
    text: str,
    models: Models | None,
    *,
    limit: int,
    per_model_limit: int,
    scope: Scope,
    hidden: Mapping[Store, tuple[FieldMeta, ...]] | None = None,
) -> list[SearchHit]:
    """The best hits among these models, or among all that are declared `global_searchable`.

    Fields that are `hidden` from the caller are not searched; a model without any other field is left out.
    """
    if len(text) > runtime.config.limits.search_length:
        raise InvalidQuery(f"q: at most {runtime.config.limits.search_length} characters")
    stores = stores_to_search(runtime, models, scope)
    limit = limit if limit > 0 else DEFAULT_HITS
    if not text.strip():
        return []
    budget = Budget(runtime.config.limits.answer_size)
    groups = [
        await _hits(store, text, limit, scope, budget, (hidden or {}).get(store, ())) for store in stores
    ]
    return merge_hits(groups, limit, per_model_limit)


def global_models(runtime: Runtime, scope: Scope) -> list[Store]:
    """The models that asked to be found by everybody, by name; what cannot be bound is left out."""
    candidates = [s for s in runtime.stores.values() if s.meta.options.global_searchable]
    stores = [store for store in candidates if find_unbound(scope, (store.meta,)) is None]
    return sorted(stores, key=lambda s: s.meta.name)


def stores_to_search(runtime: Runtime, models: Models | None, scope: Scope) -> list[Store]:
    """The models to search: these, or all that are declared `global_searchable`."""
    if models is None:
        return global_models(runtime, scope)
    entries = [models] if isinstance(models, type | str) else list(models)
    stores = list(dict.fromkeys(_store(runtime, model) for model in entries))
    for store in stores:
        missing = find_unbound(scope, (store.meta,))
        if missing is not None:
            raise UnusableScope(
                f"{store.meta.name} cannot be bound by {missing.name!r}: it has no such field"
            )
    return stores


def _store(runtime: Runtime, model: type[Model] | str) -> Store:
    """The name may be a client's, so what exists and cannot be searched is as good as nothing."""
    try:
        store = runtime.store(model)
    except DeclarationError:
        store = None
    if store is None or not searchable_fields(store.meta):
        name = model if isinstance(model, str) else model.__name__
        raise InvalidQuery(f"there is no model {name!r} that can be searched")
    return store


async def _hits(
    store: Store, text: str, limit: int, scope: Scope, budget: Budget, hidden: tuple[FieldMeta, ...]
) -> list[SearchHit]:
    if hidden and not set(searchable_fields(store.meta)).difference(hidden):
        return []
    rows = await store.search(SearchText(text, hidden) if hidden else text, limit, scope=scope, budget=budget)
    # A score counts how rare a word is among all rows, also those outside the scope; a place does not.
    by_place = bool(scope or hidden)
    scores = [1 / (place + 1) for place in range(len(rows))] if by_place else [float(row[2]) for row in rows]
    return [
        SearchHit(store.meta.name, row[0], _shorten(row[1]), score)
        for row, score in zip(rows, scores, strict=True)
    ]


def _shorten(snippet: str | None) -> str:
    text = " ".join((snippet or "").split())
    return text if len(text) <= _LONGEST_SNIPPET else text[: _LONGEST_SNIPPET - 1] + "…"


def merge_hits(groups: Sequence[Sequence[SearchHit]], limit: int, per_model_limit: int) -> list[SearchHit]:
    """At most `limit` hits, best first; the best `per_model_limit` of each model have a place for sure."""
    floor = max(per_model_limit, 0)
    sure = _best_first([hit for hits in groups for hit in hits[:floor]])[:limit]
    rest = _best_first([hit for hits in groups for hit in hits[floor:]])
    return _best_first([*sure, *rest[: limit - len(sure)]])


def _best_first(hits: Iterable[SearchHit]) -> list[SearchHit]:
    return sorted(sorted(hits, key=attrgetter("model", "id")), key=attrgetter("score"), reverse=True)
