from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.migrations import Application


@pytest.fixture
def application(tmp_path: Path, database_url: str) -> Application:
    """An application without models on an empty database."""
    return Application(tmp_path, database_url)


@pytest.fixture
def other_url(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> str:
    """One more empty database of the same kind."""
    if database_url.startswith("sqlite"):
        return f"sqlite:///{tmp_path}/other.db"
    return str(request.getfixturevalue("new_postgres_url")())


@pytest.fixture
def third_url(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> str:
    """And one more."""
    if database_url.startswith("sqlite"):
        return f"sqlite:///{tmp_path}/third.db"
    return str(request.getfixturevalue("new_postgres_url")())


@pytest.fixture
def url_of_other_kind(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> str:
    """An empty PostgreSQL database for a test on SQLite, and the other way round."""
    if database_url.startswith("sqlite"):
        return str(request.getfixturevalue("new_postgres_url")())
    return f"sqlite:///{tmp_path}/across.db"


@pytest.fixture
def other_url_of_other_kind(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> str:
    """One more of those."""
    if database_url.startswith("sqlite"):
        return str(request.getfixturevalue("new_postgres_url")())
    return f"sqlite:///{tmp_path}/across_fresh.db"
