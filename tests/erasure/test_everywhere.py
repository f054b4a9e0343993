"""Erasing a person from every table: her words are in none of them, and no row of another is changed."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from maniflex import AuthInfo, LocaleString, Model, Operation, Run, Server, field, file
from maniflex.admin import ModelAdmin
from maniflex.admin.tables import AdminTransfer, AdminTransferPiece
from maniflex.errors import Fatal
from maniflex.middleware import auth, db, idempotency
from maniflex.middleware.stores.cache import SqlStore
from maniflex.model.class_body import utc_now
from maniflex.storage import LocalStorage
from maniflex.testing import client
from tests.erasure.world import KEY, OTHER, PERSON, Words
from tests.kit.panel import Browser, add_superuser
from tests.kit.stored_bytes import stored_bytes

OTHERS_KEY = "o" * 40
# Kept answers and cached ones of everybody go, and so do files of transfers that are done.
SHARED = (  # and what belongs to nobody
    "idempotency_key",
    "cache_entry",
    "admin_transfer",
    "admin_transfer_piece",
    "erasure",
    "work_process",
)


class Guest(Model, table="ev_guests", subject="id", versioned=True):
    email: str | None = field(default=None, personal=True, unique=True, filterable=True)
    name: str = field(personal=True, erased="erased", searchable=True, filterable=True)
    title: LocaleString | None = field(default=None, personal=True)
    wishes: dict[str, Any] = field(default_factory=dict, personal=True, erased={})
    photos: list[str] = file(default_factory=list, personal=True, erased=[])
    seen_by: str | None = field(default=None, personal=True, hidden=True)


class Stay(Model, table="ev_stays", subject="guest_id", versioned_diff_only=True):
    guest_id: str = field(relation=Guest, filterable=True)
    note: str | None = field(default=None, personal=True, searchable=True)
    bill: str | None = file(default=None, personal=True)


class Meal(Model, table="ev_meals", subject="stay.guest_id", versioned=True, on_erase="delete"):
    stay_id: str = field(relation=Stay, on_delete="cascade")
    order: dict[str, Any] = field(default_factory=dict, personal=True, erased={})


def a_hotel(url: str, directory: Path) -> Server:
    server = Server(url, storage=LocalStorage(directory), background=False, subject_fields=("guest_id",))
    server.register(Guest, Stay, Meal)
    server.admin().add(ModelAdmin(Guest, can_export=True))
    server.pipeline.db.register(db.audit_log(changes=True))
    server.pipeline.response.register(db.audit_reads())
    server.pipeline.db.register(db.cache_query(SqlStore()), models=[Guest])
    keys = {KEY: AuthInfo(user_id=PERSON), OTHERS_KEY: AuthInfo(user_id=OTHER)}
    server.pipeline.auth.register(auth.api_keys(keys=keys))
    server.pipeline.deserialize.register(
        idempotency.keys(), models=[Stay], operations=Operation.WRITES, at="after"
    )
    server.outbox.enable()
    server.schedules.enable()

    @server.work.handler("clean", max_attempts=1)
    async def clean(run: Run) -> dict[str, Any]:
        await run.step("look", lambda: run.payload)
        if run.payload.get("fails"):
            raise Fatal(str(run.payload))
        return {"cleaned": run.payload}

    return server


async def live(server: Server, http: Any, of: Words, person: str, key: str, shared_file: str) -> None:
    """A guest, in every place that a hotel has."""
    photo = await server.files.store(of.new().encode(), filename=f"{of.new()}.png")
    guest = await server.db(Guest).create(
        id=person,
        email=of.new(),
        name=of.new(),
        title={"en": of.new(), "de": of.new()},
        wishes={"bed": [{"deep": {"er": of.new()}}]},
        photos=[photo.key],
        seen_by=of.new(),
    )
    await server.db(Guest).update(
        person, name=of.new(), wishes={"x": {"y": of.new()}}, title={"en": of.new()}
    )
    stays = [
        await server.db(Stay).create(guest_id=person, note=of.new(), bill=shared_file if number else None)
        for number in range(3)
    ]
    meals = [await server.db(Meal).create(stay_id=stay.id, order={"main": of.new()}) for stay in stays]
    await server.db(Meal).update(meals[0].id, order={"main": [of.new()]})
    await server.db(Stay).update(stays[2].id, note=of.new())
    await server.db(Stay).delete(stays[2].id)  # with its meal
    for options in ({"about": guest}, {"subjects": [person]}):
        await server.work.submit("clean", {"room": of.new()}, **options)
        await server.work.submit("clean", {"room": of.new(), "fails": True}, **options)
    await server.work.submit("clean", {"guest_id": person, "room": of.new()})
    await server.work.worker().drain()
    waiting = await server.work.submit("clean", {"room": of.new()}, about=meals[1])
    await server.work.signal(waiting.id, "knock", {"who": of.new()})
    await server.schedules.create(
        name=f"for {person}", cron="0 4 * * *", run="clean", payload={"guest_id": person, "w": of.new()}
    )
    async with server.transaction():
        await server.outbox.enqueue("stay.over", {"note": of.new()}, about=stays[0])
        dead = await server.outbox.enqueue("stay.lost", {"note": of.new()}, subjects=[person])
    await server.raw_exec(
        "UPDATE outbox_event SET status = 'dead', raw = ?, last_error = ? WHERE id = ?",
        of.new(),
        of.new(),
        dead.id,
    )
    headers = {"X-API-Key": key, "Idempotency-Key": of.new(), "User-Agent": of.new()}
    body = {"guest_id": person, "note": of.new()}
    assert (await http.post("/api/ev_stays", json=body, headers=headers)).status_code == 201
    assert (await http.get("/api/ev_guests?q=planted", headers=headers)).status_code == 200


async def add_transfer(server: Server, word: str) -> None:
    """An export of the panel that is done, whose file waits to be fetched."""
    transfer = await server.db(AdminTransfer).create(
        kind="export", model="Guest", phase="done", settings={"q": word}, expires_at=utc_now()
    )
    content = zlib.compress(word.encode())
    await server.db(AdminTransferPiece).create(transfer_id=transfer.id, number=0, content=content)
    await server.raw_exec("INSERT INTO cache_entry (id, value) VALUES (?, ?)", f"of {word}", word.encode())


def bytes_below(directory: Path) -> bytes:
    """Everything in the files of a directory."""
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


async def rows_with(server: Server, url: str, words: Words) -> dict[str, set[str]]:
    """The rows that have one of the words, by table."""
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'mfx_%'"
    if not url.startswith("sqlite"):
        tables = "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'"
    found: dict[str, set[str]] = {}
    for row in await server.raw_query(tables):
        stored = await server.raw_query(f'SELECT * FROM "{row["name"]}"')
        some = {text for one in stored if words.found_in((text := repr(one)).encode())}
        if some and row["name"] not in SHARED and "_fts" not in row["name"]:  # search is indexed anew
            found[row["name"]] = some
    return found


async def test_no_table_has_a_word_of_an_erased_person_and_others_keep_theirs(
    database_url: str, tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level("DEBUG")
    words, others = Words(), Words("wvu")
    server = a_hotel(database_url, tmp_path / "files")
    async with client(server, database=None) as http:
        await add_superuser(server)
        shared = await server.files.store(b"bill of both", filename="bill.pdf")
        await live(server, http, words, PERSON, KEY, shared.key)
        await live(server, http, others, OTHER, OTHERS_KEY, shared.key)
        await add_transfer(server, words.new())
        before, planted = (
            await rows_with(server, database_url, others),
            await rows_with(server, database_url, words),
        )
        assert len(planted) >= 15, sorted(planted)

        caplog.clear()  # what handlers say of their failures is in the log before
        foreseen = await server.erasure.erase(PERSON, dry_run=True)
        report = await server.erasure.erase(PERSON)

        assert await rows_with(server, database_url, words) == {}
        assert words.found_in(await stored_bytes(database_url)) == []
        assert words.found_in(bytes_below(tmp_path)) == []
        assert await rows_with(server, database_url, others) == before
        assert report.counts == foreseen.counts
        [left] = await server.raw_query("SELECT state FROM stored_file WHERE key = ?", shared.key)
        assert left["state"] == "linked"
        assert await server.db(AdminTransferPiece).list() == []
        assert [word for word in words.planted if word in caplog.text] == []
        browser = Browser(http, server.panel_path)
        assert (await browser.sign_in()).status_code == 303
        for page in ("/ev_guests", f"/ev_guests/{PERSON}", f"/ev_guests/{PERSON}/history", "/-/operations"):
            assert words.found_in((await browser.get(page)).encode()) == []
        history = await browser.get(f"/ev_guests/{PERSON}/history")
        assert "Personal values were erased from this version." in history
        assert "An erasure took personal values from the record." in history
        assert "Back to version" not in history
        assert "Back to version" in await browser.get(f"/ev_guests/{OTHER}/history")


async def test_payloads_that_no_database_can_take_apart_hide_nobody(
    database_url: str, tmp_path: Path
) -> None:
    words, others = Words(), Words("wvu")
    server = a_hotel(database_url, tmp_path / "files")
    async with server.lifespan(role="client"):
        for person, of in ((PERSON, words), (OTHER, others)):
            run = await server.work.submit("clean", {})
            odd = f'{{"guest_id": "{person}", "odd": "\\u0000\\ud800", "word": "{of.new()}"}}'
            await server.raw_exec("UPDATE workflow_run SET payload = ? WHERE id = ?", odd, run.id)

        foreseen = await server.erasure.erase(PERSON, dry_run=True)
        report = await server.erasure.erase(PERSON)

        assert await rows_with(server, database_url, words) == {}
        assert len(await rows_with(server, database_url, others)) == 1
        assert report.counts == foreseen.counts == {"workflow_run": 1}
