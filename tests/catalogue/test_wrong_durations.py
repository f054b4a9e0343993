"""A duration that is none stops the start with a message of its entry (X8)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import pytest

from maniflex import AuthInfo, DeclarationError, Model, Server
from maniflex.middleware import auth, db, idempotency, response, stores, validate
from tests.catalogue.auth.kit import SECRET
from tests.kit.notes import Note

NO_DURATIONS = [float("nan"), float("inf"), 1e300, 10**30, timedelta.max, -1, "5", True, [1], None]


def tokens(**options: Any) -> Any:
    return auth.Tokens(SECRET, issuer="notes", **options).bearer()


def key_set(**options: Any) -> Any:
    return auth.jwks("https://login.example.com/keys", issuer="login", **options)


ENTRIES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "leeway": ("auth", lambda value: auth.jwt(SECRET, leeway=value)),
    "cache_ttl": ("auth", lambda value: key_set(cache_ttl=value)),
    "refetch_interval": ("auth", lambda value: key_set(refetch_interval=value)),
    "timeout": ("auth", lambda value: key_set(timeout=value)),
    "access_ttl": ("auth", lambda value: tokens(access_ttl=value)),
    "refresh_ttl": ("auth", lambda value: tokens(refresh_ttl=value)),
    "reuse_grace": ("auth", lambda value: tokens(reuse_grace=value)),
    "window": ("db", lambda value: db.rate_limit(5, value)),
    "ttl": ("db", lambda value: db.cache_query(ttl=value)),
    "ttl=": ("deserialize", lambda value: idempotency.keys(ttl=value)),
    "wait": ("deserialize", lambda value: idempotency.keys(wait=value)),
    "lease": ("deserialize", lambda value: idempotency.keys(lease=value)),
    "max_age": ("response", lambda value: response.cache(value)),
    "max_age=": ("response", lambda value: response.cors(["https://app.example.com"], max_age=value)),
}


@pytest.mark.parametrize("option", ENTRIES)
def test_what_is_no_duration_stops_the_start(option: str) -> None:
    step, make = ENTRIES[option]
    for value in NO_DURATIONS:
        with pytest.raises(DeclarationError, match=option):
            seal(step, make(value))


WRONG: dict[str, tuple[str, Callable[[], Any]]] = {
    "digits": ("auth", lambda: auth.api_keys(keys={"sha256:" + "0" * 63: AuthInfo(user_id="ci")})),
    "roles are texts": ("auth", lambda: auth.require_role(["admin"])),  # type: ignore[arg-type]
    "limit": ("db", lambda: db.rate_limit(10**30)),
    "max_entries": ("db", lambda: db.cache_query(stores.MemoryStore(max_entries="9"))),  # type: ignore[arg-type]
    "hsts": ("use", lambda: response.security_headers(hsts=[1])),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("message", WRONG)
def test_other_wrong_arguments_are_declaration_errors_too(message: str) -> None:
    step, make = WRONG[message]
    with pytest.raises(DeclarationError, match=message):
        seal(step, make())


def test_a_forbidden_value_is_one_that_the_field_can_have() -> None:
    class Draft(Model):
        status: Literal["open", "closed"] = "open"

    server = Server()
    server.register(Draft)
    server.pipeline.validate.register(validate.forbidden_values("status", "clsoed"), models=[Draft])
    with pytest.raises(DeclarationError, match="'clsoed' is no value of status"):
        server.seal()


def seal(step: str, entry: Any) -> None:
    server = Server()
    server.register(Note)
    if step == "use":
        server.use(entry)
    else:
        getattr(server.pipeline, step).register(entry)
    server.seal()
