"""After a life of a shop no byte of an encrypted value is anywhere but in answers (checks 33, 34, 70)."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from maniflex import AuthInfo, Context, Model, Operation, Server, WithDeletedAt, field, has_many
from maniflex.audit import TableSink
from maniflex.config import Trace
from maniflex.encryption import MemoryKeyProvider
from maniflex.middleware import auth, db, idempotency
from maniflex.storage import LocalStorage
from maniflex.testing import client
from tests.kit.http import data_of, error_of
from tests.kit.stored_bytes import stored_bytes

KEY = "k" * 24
SECRETS = {"default": bytes(range(32)), "next": bytes(range(32, 64)), "search": bytes(range(64, 96))}


class Buyer(
    Model,
    WithDeletedAt,
    versioned=True,
    restore=True,
    export=True,
    aggregate=True,
    optimistic_lock=True,
):
    name: str = field(filterable=True, sortable=True, searchable=True)
    card: str = field(encrypted=True, unique=True)
    mail: str | None = field(default=None, encrypted=True, blind_index="casefold")
    note: str | None = field(default=None, encrypted=True)
    orders: list[Purchase] = has_many()


class Purchase(Model, versioned=True):
    buyer_id: str = field(filterable=True, on_delete="cascade")
    address: str = field(encrypted=True)


class Planted:
    """Texts that are stored encrypted, each another one."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def new(self) -> str:
        self.texts.append(f"planted-{len(self.texts):03d}-zyxwvutsrqpo")
        return self.texts[-1]

    def in_content(self, content: bytes) -> Iterator[str]:
        """Those that the content has, as they are, in capitals, as UTF-16, in base64 or in hex."""
        lower = content.lower()
        for text in self.texts:
            plain = text.encode()
            coded = [base64.b64encode(bytes(shift) + plain)[4:-4] for shift in range(3)]
            forms = [text.encode("utf-16-le"), *coded]
            if plain in lower or plain.hex().encode() in lower or any(one in content for one in forms):
                yield text


def a_shop(url: str, directory: Path, provider: MemoryKeyProvider) -> Server:
    server = Server(
        url,
        storage=LocalStorage(directory),
        log_level="DEBUG",
        trace=Trace(enabled=True, skips=True),
        key_provider=provider,
    )
    server.register(Buyer, Purchase)
    server.pipeline.auth.register(auth.api_keys(keys={KEY: AuthInfo(user_id="clerk", roles=("admin",))}))
    server.pipeline.deserialize.register(idempotency.keys(), at="after")
    trail = TableSink()
    server.pipeline.db.register(db.audit_log(trail, changes=True), operations=Operation.WRITES)
    server.pipeline.response.register(db.audit_reads(trail), models=[Buyer])

    @server.action("POST", "/broken")
    async def broken(ctx: Context) -> Any:
        [buyer, *_] = await ctx.db(Buyer).list()
        raise RuntimeError(f"no luck with {buyer.id}")

    return server


async def live(server: Server, http: Any, planted: Planted) -> str:
    """What a shop sees in its days; every answer that shows no value, as one text."""
    seen: list[str] = []
    headers = {"X-API-Key": KEY}

    async def ask(method: str, path: str, body: Any = None, key: str = "") -> Any:
        sent = {**headers, **({"Idempotency-Key": key} if key else {})}
        return await http.request(method, f"/api{path}", json=body, headers=sent)

    first, key = planted.new(), f"key-{len(planted.texts)}"
    body = {"name": "Ada", "card": first, "mail": planted.new(), "note": planted.new()}
    ada = data_of(await ask("POST", "/buyers", body, key=key), 201)
    again = await ask("POST", "/buyers", body, key=key)
    assert data_of(again, 201)["card"] == first
    path = f"/buyers/{ada['id']}"
    for _ in range(3):
        changed = await ask("PATCH", path, {"note": planted.new(), "mail": planted.new()})
        assert changed.status_code == 200
    purchase = {"buyer_id": ada["id"], "address": planted.new()}
    assert (await ask("POST", "/purchases", purchase)).status_code == 201
    async with server.transaction():
        await server.db(Buyer).update(ada["id"], note=planted.new())
    refusals = (
        await ask("POST", "/buyers", {"name": "Bea", "card": first}),
        await ask("POST", "/buyers", {"name": ["x"], "card": planted.new()}),
        await ask("PATCH", path, {"card": 7, "note": planted.new()}),
        await ask("PATCH", f"/buyers/{'0' * 36}", {"note": planted.new()}),
        await ask("GET", "/buyers?filter=note:eq:zyxw"),
        await ask("GET", "/buyers?q=zyxw"),
        await ask("POST", "/broken"),
    )
    seen += [refused.text for refused in refusals]
    for copy in (
        f"{path}/history",
        "/buyers/export?format=csv",
        "/buyers/export?format=jsonl",
        "/buyer_histories",
        "/openapi.json",
    ):
        answer = await ask("GET", copy)
        assert answer.status_code == 200, (copy, answer.text)
        seen.append(answer.text)
    seen.append(str((await ask("GET", path)).headers))
    assert (await ask("DELETE", path)).status_code == 204
    assert data_of(await ask("POST", f"{path}/restore"))["card"] == first
    gone = data_of(await ask("POST", "/buyers", {"name": "Cleo", "card": planted.new()}), 201)
    assert (await ask("DELETE", f"/buyers/{gone['id']}")).status_code == 204
    error_of(await ask("POST", "/broken"), 500, "PANIC")
    return "\n".join(seen)


async def test_no_byte_of_an_encrypted_value_is_left_anywhere(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    planted = Planted()
    for provider in (
        MemoryKeyProvider(SECRETS, index_key="search"),
        MemoryKeyProvider(SECRETS, index_key="search", current={"default": "next"}),
    ):
        server = a_shop(database_url, tmp_path / "files", provider)
        async with client(server, database=database_url, background=True) as http:
            if planted.texts:
                assert (await server.keys.rotate(Buyer)).complete
                assert (await server.keys.rotate(Purchase)).complete
            shown = await live(server, http, planted)
            logged = "\n".join([caplog.text, *(str(vars(record)) for record in caplog.records)])
            content = await stored_bytes(database_url)
            assert len(planted.texts) >= 12
            assert list(planted.in_content(content)) == []
            assert list(planted.in_content(shown.encode())) == []
            assert list(planted.in_content(logged.encode())) == []
            assert "_hmac" not in shown
            assert b"enc:" in content
