"""Random requests to all guarded routes: no undescribed status, no 5xx but the declared ones (C60)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.catalogue.auth.kit import token
from tests.catalogue.auth.revoker import PlainRevoker
from tests.catalogue.described.everything import Everything, everything
from tests.kit.schema_fuzz import failures
from tests.kit.sockets import listening_in_a_thread

OPERATIONS: list[dict[str, Any]] = [
    {
        # Their keys cannot be fetched, which is a 503 by declaration.
        "include-operation-id-regex": "parcel",
        "checks": {"not_a_server_error": {"enabled": False}},
    },
    {
        # A blocked operation is described, and not among those that are left.
        "include-operation-id-regex": "^options_account$",
        "checks": {"allow_header_conformance": {"enabled": False}},
    },
]
# What a guard refuses says nothing of the data that was sent.
WITHOUT = (
    *("positive_data_acceptance", "negative_data_rejection", "unsupported_method"),
    *("use_after_free", "ensure_resource_availability", "missing_required_header"),
)


async def forget(self: Any, *moments: Any) -> None:
    """A fuzzer that signs out must not keep itself out."""


def fuzzed(monkeypatch: pytest.MonkeyPatch) -> Everything:
    for name in ("revoke_token", "revoke_user"):
        monkeypatch.setattr(PlainRevoker, name, forget)
    return everything()


@pytest.fixture
def examples(long_mode: bool) -> int:
    return 60 if long_mode else 2


def test_a_caller_that_may_everything(
    database_url: str, examples: int, long_mode: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    text = token(
        jti="one",
        iss="us",
        tenant="acme",
        roles=["admin"],
        scope="write",
        iat=now.timestamp() - 60,
        exp=(now + timedelta(hours=12)).timestamp(),
    )
    headers = {"Authorization": f"Bearer {text}"}
    with listening_in_a_thread(fuzzed(monkeypatch).server, database_url) as url:
        problems = failures(
            url, examples, coverage=long_mode, headers=headers, operations=OPERATIONS, without=WITHOUT
        )
    assert problems == []


def test_a_caller_without_any_credential(
    database_url: str, examples: int, long_mode: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening_in_a_thread(fuzzed(monkeypatch).server, database_url) as url:
        assert failures(url, examples, coverage=long_mode, operations=OPERATIONS, without=WITHOUT) == []
