"""The API description of a server with sign-in and keys."""

from __future__ import annotations

from openapi_spec_validator import validate

from maniflex.middleware import auth
from tests.catalogue.auth.kit import SECRET, app
from tests.catalogue.auth.signing_in import login


async def test_the_routes_of_tokens_and_keys_are_described() -> None:
    tokens, keys = auth.Tokens(SECRET, issuer="us"), auth.ApiKeys()
    server = app(tokens.bearer(), auth.api_keys(store=keys))
    tokens.mount(server, login=login)
    keys.mount(server)

    document = await server.openapi()

    validate(document)
    paths = document["paths"]
    assert {"401", "429"} <= set(paths["/api/auth/login"]["post"]["responses"])
    assert {"get", "post"} <= set(paths["/api/api_keys"])
    assert "delete" in paths["/api/api_keys/{id}"]
    text = str(document)
    assert "digest" not in text
    assert "RefreshToken" not in text
