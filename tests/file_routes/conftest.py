"""Storages that the tests run on."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty storage: the test runs once in memory and once on a directory."""
    return "memory:" if request.param == "memory" else f"file:{tmp_path}/uploads"
