"""The object stores, started once for all tests of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import _object_stores


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with _object_stores.s3() as (endpoint, _):
        yield endpoint


@pytest.fixture(scope="session")
def azure_endpoint() -> Iterator[str]:
    if os.environ.get(_object_stores.NO_AZURE) == "1":
        pytest.skip("Azure is left out on request")
    try:
        azure = _object_stores.azure(install=False)
        with azure as (endpoint, _):
            yield endpoint
    except _object_stores.NoObjectStore as problem:
        pytest.skip(f"{problem}; scripts/test installs it")
