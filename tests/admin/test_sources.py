"""Help texts come from the sources of models, which no request waits for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from maniflex import Server
from tests.kit.panel import text_of, visiting

SOURCE = """
from maniflex import Model, field

class Leaflet(Model):
    title: str = field()
    '''Printed in large letters.'''
"""


@pytest.fixture
def compiled() -> Iterator[list[Any]]:
    """All that is compiled while a test runs, as Python itself reports it."""
    texts: list[Any] = []

    def note(event: str, arguments: Any) -> None:
        if event == "compile" and is_on:
            texts.append(arguments[0])

    is_on = True
    sys.addaudithook(note)  # for good, so it is only switched off
    yield texts
    is_on = False


async def test_no_request_reads_the_source_of_a_model(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[Any]
) -> None:
    (tmp_path / "leaflets_of_the_panel.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    server = Server()
    server.register(importlib.import_module("leaflets_of_the_panel").Leaflet)
    server.admin()
    async with visiting(server, sqlite_url) as browser:
        compiled.clear()
        assert "Printed in large letters." in text_of(await browser.get("/leaflets/new"))
    assert [text for text in compiled if "class Leaflet" in str(text)] == []
