"""Whatever is sent to any route, the answer is a well-formed one below 500, in time, and true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

from tests.kit.asgi import Call
from tests.kit.fuzz.harness import Harness, harness, static_files
from tests.kit.fuzz.requests import body_calls, header_calls, path_calls, query_calls


@pytest.fixture
def fuzzed(database_url: str, tmp_path: Path) -> Iterator[Harness]:
    with harness(database_url, static_files(tmp_path / "static")) as found:
        for table, body in (
            ("things", b'{"name":"first"}'),
            ("notes", b'{"slug":"first"}'),
            ("docs", b'{"title":"first"}'),
            ("flags", b'{"label":"first"}'),
        ):
            assert found.check(Call("POST", f"/api/{table}".encode(), body=body)).status == 201
        yield found


def fuzz(fuzzed: Harness, calls: SearchStrategy[Call], cases: int, *, repeatable: bool) -> None:
    """Send calls, a good part of what the whole file sends; the normal run sends the same every time."""
    sent, cases = 0, max(cases // 2, 500)

    @settings(max_examples=cases, derandomize=repeatable, database=None)
    @given(calls)
    def case(call: Call) -> None:
        nonlocal sent
        sent += 1
        fuzzed.check(call)

    case()
    assert sent >= cases
    assert fuzzed.check(Call("GET", b"/ready")).status == 200


def test_any_body_is_stored_as_echoed_or_refused(fuzzed: Harness, fuzz_cases: int, long_mode: bool) -> None:
    fuzz(fuzzed, body_calls(), fuzz_cases, repeatable=not long_mode)

    assert {201, 400, 409, 422} <= fuzzed.statuses("POST")
    assert {200, 400, 412, 422} <= fuzzed.statuses("PATCH")


def test_any_headers_are_survived(fuzzed: Harness, fuzz_cases: int, long_mode: bool) -> None:
    # What is drawn also depends on which modules are loaded, and of all types few are refused.
    fuzzed.check(Call("POST", b"/api/things", b"", ((b"content-type", b"text/plain"),), b"{}"))
    fuzz(fuzzed, header_calls(), fuzz_cases, repeatable=not long_mode)

    assert {201, 400, 415} <= fuzzed.statuses("POST")
    assert {200, 204, 404, 405} <= fuzzed.statuses()


def test_any_path_and_method_is_survived(fuzzed: Harness, fuzz_cases: int, long_mode: bool) -> None:
    fuzz(fuzzed, path_calls(), fuzz_cases, repeatable=not long_mode)

    assert {200, 404, 405} <= fuzzed.statuses()


def test_any_query_string_lists_or_is_refused(fuzzed: Harness, fuzz_cases: int, long_mode: bool) -> None:
    fuzz(fuzzed, query_calls(), fuzz_cases, repeatable=not long_mode)

    assert {200, 400} <= fuzzed.statuses("GET")


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_stored_to_a_depth_of_a_hundred_and_refused_beyond(
    fuzzed: Harness, opening: str, closing: str
) -> None:
    for depth in (1, 99, 100, 101, 255, 256, 1_000, 30_000):
        value = opening * depth + "null" + closing * depth
        name = "anything" if opening == "[" else "payload"
        body = f'{{"name":"deep","{name}":{value}}}'

        answer = fuzzed.check(Call("POST", b"/api/things", body=body.encode()))

        assert answer.status == (201 if depth <= 100 else 400), depth
