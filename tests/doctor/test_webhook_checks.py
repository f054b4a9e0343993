"""Secrets of webhook endpoints that lie open in the database."""

from __future__ import annotations

from maniflex import Server
from maniflex.encryption import MemoryKeyProvider
from maniflex.middleware import auth
from tests.kit.doctor import Leaflet, codes_of, declared


async def codes(*, has_keys: bool, has_clients: bool) -> set[str]:
    server = Server(":memory:", background=False)
    server.register(Leaflet)
    server.pipeline.auth.register(auth.allow_anonymous())
    server.webhooks.send("https://example.com/x", "*", secret=None)
    if has_clients:
        server.webhooks.enable(["*"])
    if has_keys:
        server.set_key_provider(MemoryKeyProvider({"default": bytes(range(32))}))
    return set(codes_of(await declared(server)))


async def test_open_secrets_are_found() -> None:
    assert "T177" in await codes(has_keys=False, has_clients=True)
    assert "T177" not in await codes(has_keys=True, has_clients=True)
    assert "T177" not in await codes(has_keys=False, has_clients=False)
