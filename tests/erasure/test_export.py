"""What is kept of a person, handed out: all of hers, nothing of another one, no hidden field."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

from maniflex import Model, Server, field
from tests.erasure.test_bytes import fill
from tests.erasure.world import PERSON, Words, a_shop, served
from tests.kit.servers import started


def _export(server: Server) -> AsyncIterator[tuple[str, bytes]]:
    return server.erasure.export(PERSON, history=True, reason="she asked", by="office")


async def test_all_of_a_person_is_handed_out_and_none_of_another(database_url: str, tmp_path: Path) -> None:
    words, others = Words(), Words("wvu")
    server = a_shop(database_url, tmp_path / "files")
    async with served(server) as http:
        await fill(server, http, words, others)
        parts: dict[str, bytes] = {}
        async for name, content in server.erasure.export(
            PERSON, history=True, reason="she asked", by="office"
        ):
            parts[name] = parts.get(name, b"") + content

        content = b"".join([*parts.values(), *(name.encode() for name in parts)])
        assert words.found_in(content) == words.planted
        assert others.found_in(content) == []
        [file] = [name for name in parts if name.startswith("files/")]
        assert parts[file] == words.planted[0].encode()
        manifest = json.loads(parts["manifest.json"])
        assert list(parts)[-1] == "manifest.json"
        for name, number in manifest["counts"].items():
            assert number == (1 if name == "files" else len(parts[name].splitlines()))
        [customer] = [json.loads(line) for line in parts["er_customers.jsonl"].splitlines()]
        assert set(customer) == set(manifest["models"]["Customer"])
        [told] = await server.raw_query(
            "SELECT actor, reason, resource_id FROM audit_log WHERE operation = 'export'"
        )
        assert tuple(told.values()) == ("office", "she asked", PERSON)


class Account(Model, table="er_export_accounts", subject="id"):
    email: str | None = field(default=None, personal=True, alias="mail")
    password: str = field(writeonly=True)
    score: int = field(default=7, hidden=True)


async def test_no_hidden_field_is_handed_out(database_url: str) -> None:
    async with started(database_url, Account, background=False) as server:
        await server.db(Account).create(id="a", email="a@example.org", password="secret-word")

        parts = {name: content async for name, content in server.erasure.export("a")}

        record = json.loads(parts["er_export_accounts.jsonl"])
        assert {"id": record["id"], "mail": record["mail"]} == {"id": "a", "mail": "a@example.org"}
        assert not {"password", "score"} & set(record)
