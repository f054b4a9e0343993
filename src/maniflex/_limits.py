"""How much one query may ask for."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_LIMIT = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """The caps of a query; what goes beyond them is refused before any SQL is written."""

    max_limit: int = 200
    max_page: int = 1_000_000_000
    uri_length: int = 8192
    filters: int = 50
    groups: int = 20
    values: int = 500  # in one `in` or `not_in`
    sorts: int = 10
    selects: int = 100
    includes: int = 10
    include_depth: int = 2
    included_rows: int = 10_000  # related records in one answer
    path_depth: int = 3  # relations in one dotted filter
    search_length: int = 500
    aggregates: int = 20  # values one aggregate computes
    group_keys: int = 10  # fields one aggregate groups by


DEFAULT_LIMITS = Limits()
