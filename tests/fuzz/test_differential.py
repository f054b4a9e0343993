"""The same requests get the same answers on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.asgi import Answer, Call
from tests.kit.fuzz.bodies import NASTY_NUMBERS, NASTY_TEXT, NASTY_TOKENS, THING
from tests.kit.fuzz.harness import Harness, harness, static_files
from tests.kit.fuzz.requests import body_calls, header_calls, path_calls, query_calls

OWN = frozenset({"id", "created_at", "updated_at", "deleted_at"})  # each server makes its own

JSON_FIELDS = frozenset({"payload", "tags", "anything", "address", "contact"})


def comparable(answer: Answer, server: Harness) -> Any:
    """The answer without what two servers cannot have in common."""
    names = {id_: f"id {n}" for ids in server.ids.values() for n, id_ in enumerate(ids)}
    etag = answer.header(b"etag") is not None
    is_json = answer.header(b"content-type") == b"application/json"
    body = _plain(answer.json(), names) if answer.body and is_json else answer.body
    return answer.status, etag, answer.header(b"allow"), repr(body)  # 1, 1.0 and true are not alike


def _plain(value: Any, names: dict[str, str]) -> Any:
    match value:
        case dict():
            return {key: key in OWN or _plain(item, names) for key, item in value.items()}
        case list():
            return [_plain(item, names) for item in value]
        case str():
            return names.get(value, value)
        case _:
            return value


@pytest.fixture
def both(sqlite_url: str, postgres_url: str, tmp_path: Path) -> Iterator[tuple[Harness, Harness]]:
    static = static_files(tmp_path / "static")
    with harness(sqlite_url, static) as sqlite, harness(postgres_url, static) as postgres:
        yield sqlite, postgres


def answered_alike(both: tuple[Harness, Harness], call: Call) -> int:
    """Send the call to both; gives back the status they agree on."""
    sqlite, postgres = both
    here, there = sqlite.check(call), postgres.check(call)
    assert comparable(here, sqlite) == comparable(there, postgres), call
    return here.status


def test_random_requests_are_answered_alike(
    both: tuple[Harness, Harness], fuzz_cases: int, long_mode: bool
) -> None:
    calls = st.one_of(body_calls(), body_calls(), header_calls(), path_calls(), query_calls())
    answered: set[int] = set()

    @settings(max_examples=max(fuzz_cases // 2, 300), derandomize=not long_mode, database=None)
    @given(calls.filter(lambda call: not call.gone))
    def case(call: Call) -> None:
        answered.add(answered_alike(both, call))

    case()
    assert {200, 201, 400, 404, 409, 422} <= answered


@pytest.mark.parametrize("name", THING)
def test_every_awkward_value_of_a_field_is_answered_alike(both: tuple[Harness, Harness], name: str) -> None:
    atoms = [*NASTY_NUMBERS, *NASTY_TOKENS, *map(json.dumps, NASTY_TEXT)]
    if name in JSON_FIELDS:
        atoms += [f"[{atom}]" for atom in atoms] + [f'{{"a":{atom}}}' for atom in atoms]
    assert answered_alike(both, Call("POST", b"/api/things", body=b'{"name":"x"}')) == 201
    rest = "" if name == "name" else '"name":"x",'

    statuses = {
        answered_alike(both, Call("POST", b"/api/things", body=f'{{{rest}"{name}":{atom}}}'.encode()))
        for atom in atoms
    }

    assert {400, 422} <= statuses <= {201, 400, 422}


@pytest.mark.parametrize("name", [*THING, "id", "created_at"])
def test_every_awkward_value_of_a_filter_is_answered_alike(both: tuple[Harness, Harness], name: str) -> None:
    for count in (0, 1, 2):
        body = {"name": f"thing {count}", "count": count, "at": "2024-05-31T09:30:00Z", "price": "1.10"}
        assert answered_alike(both, Call("POST", b"/api/things", body=json.dumps(body).encode())) == 201
    for direction in ("asc", "desc"):
        answered_alike(both, Call("GET", b"/api/things", f"sort={name}:{direction}".encode()))

    for value in (*NASTY_TEXT, *NASTY_NUMBERS):
        query = "filter=" + quote(f"{name}:eq:{value}", errors="surrogatepass")
        assert answered_alike(both, Call("GET", b"/api/things", query.encode())) in (200, 400)
