"""Departments whose names have translations, or none, by `BENCH_ENTRIES`; for `languages.py`."""

from __future__ import annotations

import os

from maniflex import LocaleOptions, LocaleString, Model, Server, field

KIND = os.environ["BENCH_ENTRIES"]  # translated, plain, or beside: a plain model beside a translated one


class Plain(Model, table="departments_plain"):
    name: str = field(filterable=True, sortable=True)
    floor: int = 0


class Translated(Model, table="departments_translated"):
    name: LocaleString = field(filterable=True, sortable=True)
    level: int = 0  # as long a name, but another: the tables are no renamed ones


options = {} if KIND == "plain" else {"locale": LocaleOptions(supported=("en", "de"), from_header=True)}
server = Server(os.environ["BENCH_DATABASE"], health_check_db=True, **options)
server.register(*({"plain": [Plain], "translated": [Translated]}.get(KIND) or [Plain, Translated]))
