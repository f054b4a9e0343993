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


def fuzzed(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Everything:
    for name in ("revoke_token", "revoke_user"):
        monkeypatch.setattr(PlainRevoker, name, forget)
    return everything(**settings)


@pytest.fixture
def examples(long_mode: bool) -> int:
    return 60 if long_mode else 2


def good_for_hours(**claims: Any) -> dict[str, str]:
    now = datetime.now(UTC)
    times: dict[str, Any] = {"iat": now.timestamp() - 60, "exp": (now + timedelta(hours=12)).timestamp()}
    return {"Authorization": f"Bearer {token(jti='one', iss='us', **times, **claims)}"}


CALLERS: dict[str, dict[str, str]] = {
    "may do everything": good_for_hours(tenant="acme", roles=["admin"], scope="write"),
    "may do nothing": good_for_hours(),
    "is not known": {},
}


@pytest.mark.parametrize("caller", CALLERS)
def test_what_a_caller_gets_is_described(
    caller: str, database_url: str, examples: int, long_mode: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = CALLERS[caller]
    server = fuzzed(monkeypatch, openapi_all_methods=long_mode).server
    with listening_in_a_thread(server, database_url) as url:
        problems = failures(
            url,
            examples,
            coverage=long_mode,
            stateful=long_mode or caller == "may do everything",
            headers=headers,
            operations=OPERATIONS,
            without=WITHOUT,
        )
    assert problems == []
