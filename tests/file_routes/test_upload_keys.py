"""F54: `idempotency.keys` on `/files`: an upload that is sent twice is stored once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from maniflex import Context, DeclarationError, Next
from maniflex.middleware import db, idempotency
from maniflex.storage import MemoryStorage
from maniflex.testing import FakeClock
from tests.file_routes.world import MODELS, PNG, a_server, rows_of_files, site, stored_keys
from tests.kit.http import data_of, error_of

FILES = "/api/files"
A, B = {"x-user": "a", "x-tenant": "A"}, {"x-user": "b", "x-tenant": "B"}


def _part(content: bytes = PNG, name: str = "a.png") -> dict[str, Any]:
    return {"file": (name, content, "image/png")}


def _server(**settings: Any) -> Any:
    return a_server("memory:", *MODELS, files_middleware=[idempotency.keys()], **settings)


async def test_an_upload_that_is_sent_again_is_stored_once(database_url: str) -> None:
    server = _server(upload_memory=100)
    async with site(server, database_url) as http:
        keyed = {**A, "idempotency-key": "one"}
        first = await http.post(FILES, files=_part(), headers=keyed)
        again = await http.post(FILES, files=_part(), headers=keyed)  # httpx makes another boundary
        assert (first.status_code, again.status_code) == (201, 201)
        assert first.json() == again.json()
        assert again.headers["idempotent-replayed"] == "true"
        other = await http.post(FILES, files=_part(PNG + b"!"), headers=keyed)
        error_of(other, 422, "IDEMPOTENCY_KEY_REUSED")
        renamed = await http.post(FILES, files=_part(name="b.png"), headers=keyed)
        error_of(renamed, 422, "IDEMPOTENCY_KEY_REUSED")
        key = data_of(first, 201)["key"]
        assert await stored_keys(server) == await rows_of_files(server) == {key}
        assert (await http.get(f"{FILES}/{key}", headers=A)).content == PNG

        of_b = data_of(await http.post(FILES, files=_part(), headers={**B, "idempotency-key": "one"}), 201)
        assert of_b["key"] != key
        deleted = [await http.delete(f"{FILES}/{key}", headers={**A, "idempotency-key": "two"}) for _ in "12"]
        assert [answer.status_code for answer in deleted] == [204, 204]


async def test_of_twins_at_once_one_is_stored(database_url: str) -> None:
    server = _server()
    async with site(server, database_url) as http:
        keyed = {**A, "idempotency-key": "twins"}
        answers = await asyncio.gather(*(http.post(FILES, files=_part(), headers=keyed) for _ in range(5)))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.json()["data"]["key"] for answer in answers}) == 1
        assert len(await stored_keys(server)) == 1


async def test_a_refused_upload_frees_its_key(database_url: str) -> None:
    server = _server()
    async with site(server, database_url) as http:
        keyed = {**A, "idempotency-key": "again"}
        error_of(await http.post(FILES, files={"other": ("a", b"x")}, headers=keyed), 400, "NO_FILE")
        two = [("file", ("a", b"x")), ("file", ("b", b"y"))]
        error_of(await http.post(FILES, files=two, headers=keyed), 400, "MULTIPART_ERROR")
        error_of(await http.post(FILES, json={}, headers=keyed), 415, "UNSUPPORTED_MEDIA_TYPE")
        data_of(await http.post(FILES, files=_part(), headers=keyed), 201)
        data_of(await http.post(FILES, files=_part(), headers=A), 201)  # without a key every one counts
        assert len(await stored_keys(server)) == 2


async def test_other_entries_do_not_stand_before_files() -> None:
    for entry, message in (
        (db.tenancy(), "db.tenancy: it does nothing there"),
        (idempotency.keys(ttl=-1), "ttl"),
    ):
        with pytest.raises(DeclarationError, match=message):
            a_server("memory:", *MODELS, files_middleware=[entry]).seal()


async def test_a_part_of_another_type_is_another_upload(database_url: str) -> None:
    async with site(_server(), database_url) as http:
        keyed = {**A, "idempotency-key": "one"}
        data_of(await http.post(FILES, files={"file": ("a", b"x", "text/plain")}, headers=keyed), 201)
        other = await http.post(FILES, files={"file": ("a", b"x", "text/html")}, headers=keyed)
        error_of(other, 422, "IDEMPOTENCY_KEY_REUSED")
        more = await http.post(
            FILES, files={"file": ("a", b"x", "text/plain")}, data={"to": "b"}, headers=keyed
        )
        error_of(more, 422, "IDEMPOTENCY_KEY_REUSED")


async def test_a_key_counts_within_what_file_scope_says(database_url: str) -> None:
    """One caller acts for two teams: the file of one is not the answer to the other."""
    server = _server(file_scope=lambda ctx: ctx.header("x-team"))
    async with site(server, database_url) as http:
        keyed = {**A, "idempotency-key": "one"}
        files = [
            data_of(await http.post(FILES, files=_part(), headers={**keyed, "x-team": team}), 201)["key"]
            for team in ("red", "blue", "red")
        ]
        assert files[0] == files[2] != files[1]
        statuses = [
            (
                await http.delete(
                    f"{FILES}/{files[1]}", headers={**A, "x-team": team, "idempotency-key": "two"}
                )
            ).status_code
            for team in ("red", "blue", "red", "blue")
        ]
        assert statuses == [404, 204, 404, 204]  # the last is a replay


async def test_a_tenant_without_a_user_has_keys_of_its_own(database_url: str) -> None:
    async with site(_server(), database_url) as http:
        files = [
            data_of(
                await http.post(FILES, files=_part(), headers={"x-tenant": t, "idempotency-key": "one"}), 201
            )
            for t in ("A", "B", "A")
        ]
        assert files[0] == files[2] != files[1]


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_right_that_is_lost_is_no_replay_wherever_its_rule_stands(
    database_url: str, is_first: bool
) -> None:
    """I14: what refuses requests runs before the key is looked for."""

    async def members(ctx: Context, next: Next) -> None:
        if ctx.header("x-role") != "member":
            ctx.abort(403, "FORBIDDEN", "members only")
        await next()

    rules = [idempotency.keys(), members] if is_first else [members, idempotency.keys()]
    server = a_server("memory:", *MODELS, files_middleware=rules)
    async with site(server, database_url) as http:
        keyed = {**A, "idempotency-key": "one"}
        member = {**keyed, "x-role": "member"}
        key = data_of(await http.post(FILES, files=_part(), headers=member), 201)["key"]
        error_of(await http.post(FILES, files=_part(), headers=keyed), 403, "FORBIDDEN")
        deleted = [
            (await http.delete(f"{FILES}/{key}", headers=h)).status_code for h in (member, keyed, member)
        ]
        assert deleted == [204, 403, 204]


async def test_a_file_that_came_too_late_is_given_up(database_url: str) -> None:
    """I10: an owner that slept past its lease answers with its successor's file and keeps none of its own."""
    is_reached, is_open = asyncio.Event(), asyncio.Event()

    async def quota(owner: str) -> int:
        if not is_reached.is_set():
            is_reached.set()
            await is_open.wait()
        return 1_000_000

    clock, storage = FakeClock(), MemoryStorage()
    sleeper, other = [
        a_server(storage, *MODELS, files_middleware=[idempotency.keys()], file_quota=quota) for _ in "12"
    ]
    keyed = {**A, "idempotency-key": "one"}
    async with (
        site(sleeper, database_url, clock=clock) as one,
        site(other, database_url, clock=clock) as two,
    ):
        late = asyncio.create_task(one.post(FILES, files=_part(), headers=keyed))
        await is_reached.wait()
        clock.advance(timedelta(seconds=31))
        key = data_of(await two.post(FILES, files=_part(), headers=keyed), 201)["key"]
        is_open.set()
        answer = await late
        assert data_of(answer, 201)["key"] == key
        assert answer.headers["idempotent-replayed"] == "true"
        assert await stored_keys(other) == await rows_of_files(other) == {key}  # the first sweeps
