"""The query grammar as OpenAPI parameters: what a list of a model, or one record of it, can be asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from maniflex._limits import DEFAULT_LIMIT, Limits
from maniflex.model.meta import ModelMeta
from maniflex.openapi import filters
from maniflex.openapi.reachable import Reachable
from maniflex.openapi.schema import Schema, Schemas, ref

Parameter = dict[str, Any]
LIST = ("page", "limit", "cursor", "filter", "sort", "select", "include", "q")
ONE = ("select", "include")


class Grammar:
    """The parameters of one model, by name."""

    def __init__(self, model: ModelMeta, reachable: Reachable, limits: Limits, schemas: Schemas) -> None:
        self._model = model
        self._reachable = reachable
        self._limits = limits
        self._schemas = schemas

    def parameters(self, names: Iterable[str], *, for_export: bool = False) -> list[Parameter]:
        """Those of the named parameters that the model takes."""
        makers = {name: getattr(self, f"_{name}") for name in LIST}
        makers["select"] = partial(self._select, for_export=for_export)
        return [parameter for name in names for parameter in makers[name]()]

    def _page(self) -> list[Parameter]:
        most = self._limits.max_page
        schema = {"type": "integer", "minimum": 1, "maximum": most, "default": 1}
        return [_query("page", "Which page, counted from 1.", schema)]

    def _limit(self) -> list[Parameter]:
        most = self._limits.max_limit
        schema = {"type": "integer", "minimum": 1, "maximum": self._limits.max_page}
        text = f"How many records a page has, at most {most}; asking for more gives {most}."
        return [_query("limit", text, {**schema, "default": min(DEFAULT_LIMIT, most)})]

    def _cursor(self) -> list[Parameter]:
        name = self._model.options.cursor_field
        field = self._model.field(name) if name else None
        if field is None:
            return []
        text = (
            f"Walk through all records in the order of `{field.api}` without counting them: empty to begin, "
            "then `meta.next_cursor` or `meta.prev_cursor`. Not together with `page`, `q` or another sort."
        )
        return [_query("cursor", text, {"type": "string", "format": "cursor"}, allowEmptyValue=True)]

    def _filter(self) -> list[Parameter]:
        operators = filters.describe_operators(self._model)
        pattern = filters.expression(self._model, self._reachable, self._limits)
        if not operators and pattern is None:
            return []
        item: Schema = {"type": "string"}
        if pattern is not None:
            name = f"{self._model.name}Filter"
            self._schemas.components[name] = {"type": "string", "pattern": pattern}
            item = ref(name)
        text = "Only records for which `field:operator:value` holds; several must all hold."
        backend = self._model.options.backend
        if backend is None:
            text += " A field of a related record is written `relation.field`."
        text += f" At most {self._limits.filters} filters, those of groups included."
        schema = {"type": "array", "items": item}
        either = (
            "A group of filters of which one has to hold. Further groups are `filter[1]`, `filter[2]` and so "
            "on; every group and every plain filter has to hold."
        )
        groups = [_query("filter[0]", either, schema)]
        if backend is not None and not getattr(backend, "any_of", False):
            groups = []
        return [_query("filter", f"{text}\n\n{operators}".strip(), schema), *groups]

    def _sort(self) -> list[Parameter]:
        if not getattr(self._model.options.backend, "sorts", True):
            return []
        names = [
            prefix + f.api
            for prefix, model, single in self._reachable.joinable_paths(self._model, self._limits.path_depth)
            if single
            for f in model.fields
            if f.sortable and not f.secret
        ]
        if not names:
            return []
        terms = [f"{name}{direction}" for name in names for direction in ("", ":asc", ":desc")]
        text = "The order, by one field or several: `field`, `field:asc` or `field:desc`."
        return [_query("sort", text, self._names_schema(terms, self._limits.sorts), **_COMMAS)]

    def _select(self, *, for_export: bool) -> list[Parameter]:
        names = [f.api for f in self._model.fields if (f.exported if for_export else f.visible)]
        text = "Only these fields of each record."
        return [_query("select", text, self._names_schema(names, self._limits.selects), **_COMMAS)]

    def _include(self) -> list[Parameter]:
        names = list(self._reachable.includable_paths(self._model, self._limits.include_depth))
        if not names:
            return []
        most = self._limits.includes if len(names) > self._limits.includes else None
        text = "Related records to send along, at most two levels deep."
        return [_query("include", text, self._names_schema(names, most), **_COMMAS)]

    def _q(self) -> list[Parameter]:
        if not any(f.searchable and not f.secret for f in self._model.fields):
            return []
        text = "Full-text search; the best matches come first."
        return [_query("q", text, {"type": "string", "maxLength": self._limits.search_length})]

    def _names_schema(self, names: Sequence[str], most: int | None) -> Schema:
        item: Schema = {"type": "string"}
        if len(names) <= 3 * filters.MOST_NAMES:
            item["enum"] = list(names)
        schema = {"type": "array", "items": item, "minItems": 1}
        return schema if most is None else {**schema, "maxItems": most}


_COMMAS: Parameter = {"style": "form", "explode": False}


def _query(name: str, text: str, schema: Schema, **more: Any) -> Parameter:
    return {"name": name, "in": "query", "description": text, "schema": schema, **more}


AS_OF = _query(
    "as_of",
    "The state at that moment instead of the present one. Not together with `include`, `q` and `cursor`.",
    {"type": "string", "format": "date-time"},
)
