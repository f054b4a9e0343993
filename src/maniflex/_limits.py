"""How much one request may ask for, bring and be answered with."""

from __future__ import annotations

from dataclasses import dataclass

from maniflex._arguments import explain_class

DEFAULT_LIMIT = 20


@explain_class
@dataclass(frozen=True, slots=True)
class Limits:
    """The caps of a request; what goes beyond those of a query is refused before any SQL is written."""

    max_limit: int = 200
    max_page: int = 1_000_000_000
    uri_length: int = 8192
    filters: int = 50
    groups: int = 20
    values: int = 500  # in one `in` or `not_in`
    pattern_length: int = 200  # characters behind a text operator
    wildcards: int = 10  # in one pattern
    sorts: int = 10
    selects: int = 100
    includes: int = 10
    include_depth: int = 2
    included_rows: int = 10_000  # related records in one answer
    path_depth: int = 3  # relations in one dotted filter
    search_length: int = 500
    aggregates: int = 20  # values one aggregate computes
    group_keys: int = 10  # fields one aggregate groups by
    answer_size: int = 16 * 1024 * 1024  # bytes of a list, an aggregate or what is included
    body_values: int = 100_000  # values in one JSON body: numbers, texts, lists, objects


DEFAULT_LIMITS = Limits()
