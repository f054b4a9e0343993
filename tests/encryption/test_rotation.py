"""Rotating keys, encrypting what was plain, and back (E18-E24, checks 39-41 and 67)."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import pytest

from maniflex import DeclarationError, Model, Run, Server, WithDeletedAt, field
from maniflex.encryption import MemoryKeyProvider, RotationReport, context_of
from maniflex.encryption.envelope import to_text
from maniflex.encryption.local import EnvKeyProvider, generate_key
from maniflex.middleware import idempotency
from maniflex.testing import client
from tests.kit.commands import Commands
from tests.kit.doctor import sound_server, stored
from tests.kit.http import created, data_of, error_of
from tests.kit.patients import KEYS, a_clinic
from tests.kit.processes import IMPORTS, MANIFLEX
from tests.kit.schema import indexes, model
from tests.kit.servers import started
from tests.kit.stored_bytes import stored_bytes

SECOND = bytes(range(64, 96))


class Note(Model, WithDeletedAt, versioned=True, optimistic_lock=True):
    name: str
    text: str | None = field(default=None, encrypted="notes")
    code: str | None = field(default=None, encrypted="notes", unique=True)


def old_keys() -> MemoryKeyProvider:
    return MemoryKeyProvider(dict(KEYS), index_key="default")


def new_keys(**options: Any) -> MemoryKeyProvider:
    """Values are written under another key; the old one is there, unless it is taken away."""
    provided = {**KEYS, "notes-2": SECOND}
    if options.pop("without_old", False):
        del provided["notes"]
    options.setdefault("index_key", "default")
    return MemoryKeyProvider(provided, current={"notes": "notes-2"}, **options)


async def fill(server: Server, count: int) -> None:
    async with server.transaction():
        for number in range(count):
            await server.db(Note).create(name=f"n{number}", text=f"text {number}", code=f"code-{number}")


async def states(server: Server) -> set[tuple[str, str]]:
    """The fields that have values, and under which keys."""
    return {(one.field, one.key_id) for one in await server.keys.status(Note)}


async def test_every_value_is_written_under_the_new_key_and_stays_what_it_was(database_url: str) -> None:
    async with client(a_clinic(Note, provider=old_keys()), database=database_url) as http:
        first = await created(http, "/api/notes", name="a", text="secret", code="c-1")
        gone = await created(http, "/api/notes", name="b", text="deleted")
        await http.delete(f"/api/notes/{gone['id']}")
    server = a_clinic(Note, provider=new_keys())
    async with client(server, database=database_url) as http:
        before = await http.get(f"/api/notes/{first['id']}")
        history = await http.get(f"/api/notes/{first['id']}/history")
        assert await states(server) == {("text", "notes"), ("code", "notes")}
        assert (await server.keys.rotate(Note, dry_run=True)).rotated == 0
        assert await states(server) == {("text", "notes"), ("code", "notes")}

        report = await server.keys.rotate(Note)

        assert (report.total, report.rotated, report.complete) == (2, 2, True)
        assert await states(server) == {("text", "notes-2"), ("code", "notes-2")}
        after = await http.get(f"/api/notes/{first['id']}")
        assert after.content == before.content
        assert after.headers["etag"] == before.headers["etag"]
        assert (await http.get(f"/api/notes/{first['id']}/history")).content == history.content
        again = await server.keys.rotate(Note)
        assert (again.rotated, again.skipped, again.complete) == (0, 2, True)
    async with client(a_clinic(Note, provider=new_keys(without_old=True)), database=database_url) as http:
        assert data_of(await http.get(f"/api/notes/{first['id']}")) == first
        error_of(await http.post("/api/notes", json={"name": "x", "code": "c-1"}), 409, "CONFLICT")


async def test_an_old_key_is_needed_as_long_as_a_value_names_it(database_url: str) -> None:
    async with started(database_url, Note, key_provider=new_keys()) as server:
        await fill(server, 40)
        [last] = await server.db(Note).list({"name": "n39"})
        envelope = old_keys().seal("notes", b"old", context_of("notes.text", last.id))
        await server.raw_exec("UPDATE notes SET text = ? WHERE id = ?", to_text(envelope), last.id)

    with pytest.raises(DeclarationError, match=r"Note.text: values are stored under the key 'notes' still"):
        async with client(a_clinic(Note, provider=new_keys(without_old=True)), database=database_url):
            pass


async def test_one_value_that_does_not_open_keeps_all_from_being_written(database_url: str) -> None:
    server = a_clinic(Note, provider=old_keys())
    async with client(server, database=database_url):
        await fill(server, 30)
        [row] = await server.db(Note).list({"name": "n7"})
        await server.raw_exec("UPDATE notes SET text = code WHERE id = ?", row.id)
        await server.raw_exec("UPDATE notes SET code_hmac = 'x' WHERE name = 'n9'")
    server = a_clinic(Note, provider=new_keys())
    async with client(server, database=database_url):
        report = await server.keys.rotate(Note)
        stages = {(failure.field, failure.stage) for failure in report.failures}
        assert stages == {("text", "open"), ("code", "digest")}
        assert row.id in {failure.id for failure in report.failures}
        assert (report.rotated, report.complete) == (0, False)
        assert {one.key_id for one in await server.keys.status(Note)} == {"notes"}
        [checked] = await server.keys.check(Note)
        assert len(checked.failures) == 2


async def test_digests_need_an_index_key_before_their_key_may_go(database_url: str) -> None:
    server = a_clinic(Note, provider=new_keys(index_key=None))
    async with client(server, database=database_url):
        with pytest.raises(DeclarationError, match="index_key"):
            await server.keys.rotate(Note)


async def test_a_key_that_is_not_there_is_refused_before_a_row_is_read(database_url: str) -> None:
    server = a_clinic(Note, provider=new_keys())
    async with client(server, database=database_url):
        await fill(server, 2)
        wrong_keys: list[tuple[dict[str, Any], str]] = [
            ({"new": "absent"}, "the key to write under: there is no key 'absent'"),
            ({"new": ""}, "a key id has between 1 and 65535 bytes"),
            ({"old": ""}, "name the key"),
        ]
        for options, text in wrong_keys:
            with pytest.raises(DeclarationError, match=text):
                await server.keys.rotate(Note, **options)
        assert await states(server) == {("text", "notes-2"), ("code", "notes-2")}


async def test_rotations_of_several_processes_end_together(database_url: str) -> None:
    async with client(a_clinic(Note, provider=old_keys()), database=database_url):
        pass
    async with started(database_url, Note, key_provider=old_keys()) as server:
        await fill(server, 200)
    async with (
        started(database_url, Note, key_provider=new_keys()) as one,
        started(database_url, Note, key_provider=new_keys()) as two,
    ):

        def end_at_once(rows: int) -> None:
            raise RuntimeError("ended")

        with pytest.raises(RuntimeError, match="ended"):  # its row of progress is that of the next ones
            await one.keys.rotate(Note, page_size=1, on_rows=end_at_once)
        sizes = ((one, 1), (two, 1000), (one, 3), (two, 500))
        reports = await asyncio.gather(*(s.keys.rotate(Note, page_size=size) for s, size in sizes))
        assert all(report.complete and not report.failures for report in reports)
        assert await states(one) == {("text", "notes-2"), ("code", "notes-2")}
        notes = {note.name: note.text for note in await two.db(Note).list()}
        assert notes == {f"n{number}": f"text {number}" for number in range(200)}
        assert await one.raw_query("SELECT id FROM key_rotation WHERE goal <> 'encrypted'") == []


async def test_a_write_that_comes_in_between_wins_and_a_call_that_was_ended_goes_on(
    database_url: str,
) -> None:
    async with client(a_clinic(Note, provider=old_keys()), database=database_url) as http:
        for number in range(60):
            await created(http, "/api/notes", name=f"n{number}", text=f"text {number}")
    server = a_clinic(Note, provider=new_keys())
    async with client(server, database=database_url):
        records = {one.name: one for one in await server.db(Note).list(limit=None)}

        class Ended(Exception):
            pass

        seen = 0

        def end_soon(rows: int) -> None:
            nonlocal seen
            seen += rows
            if seen >= 20:
                raise Ended

        with pytest.raises(Ended):
            await server.keys.rotate(Note, page_size=10, on_rows=end_soon)
        patched = [server.db(Note).update(records[f"n{n}"].id, text=f"patched {n}") for n in range(60)]
        reports: list[RotationReport] = []

        async def rotate() -> None:
            reports.append(await server.keys.rotate(Note, page_size=3))

        await asyncio.gather(rotate(), *patched)
        report = await server.keys.rotate(Note)
        assert report.complete
        assert {one.text for one in await server.db(Note).list(limit=None)} == {
            f"patched {n}" for n in range(60)
        }
        assert await states(server) == {("text", "notes-2")}


async def test_rotation_writes_the_label_of_today(database_url: str) -> None:
    old = model("OldNote", "old_notes", {"text": (str, field(encrypted=True))})
    renamed = model(
        "Memo", "memos", {"body": (str, field(encrypted=True, renamed_from="text"))}, renamed_from="old_notes"
    )
    today = model("Memo", "memos", {"body": (str, field(encrypted=True))})
    async with client(a_clinic(old), database=database_url) as http:
        await created(http, "/api/old_notes", text="kept")
    with_old_name = a_clinic(renamed)
    async with client(with_old_name, database=database_url):
        report = await with_old_name.keys.rotate("Memo")
        assert (report.rotated, report.complete) == (1, True)
        assert (await with_old_name.keys.rotate("Memo")).rotated == 0
    async with client(a_clinic(today), database=database_url) as http:
        assert data_of(await http.get("/api/memos"))[0]["body"] == "kept"


async def test_a_run_rotates(database_url: str) -> None:
    async with client(a_clinic(Note, provider=old_keys()), database=database_url) as http:
        await created(http, "/api/notes", name="a", text="secret")
    server = a_clinic(Note, provider=new_keys())

    @server.work.handler("other.v1")
    async def other(run: Any) -> None:
        """So that the server has durable work."""

    async with client(server, database=database_url, background=True):
        run = await server.work.submit("maniflex.keys.rotate", {"model": "Note"})
        finished = await server.work.wait(run.id)
        assert isinstance(finished.result, dict)
        assert finished.result["complete"] is True
        assert await states(server) == {("text", "notes-2")}


class Person(Model, versioned=True, table="people"):
    name: str
    email: str = field(unique=True)


EMAILS = [f"person-{number}@secret.example" for number in range(20)]


async def test_plain_texts_are_encrypted_and_taken_out_of_what_was_written_before(database_url: str) -> None:
    encrypted = model(
        "Person",
        "people",
        {"name": str, "email": (str, field(encrypted=True, unique=True, blind_index=True))},
        versioned=True,
    )
    plain = Server()
    plain.register(Person)
    plain.pipeline.deserialize.register(idempotency.keys(), at="after")
    async with client(plain, database=database_url) as http:
        for email in EMAILS:
            answer = await http.post(
                "/api/people", json={"name": "x", "email": email}, headers={"idempotency-key": email}
            )
            assert answer.status_code == 201
    server = a_clinic(encrypted)
    server.pipeline.deserialize.register(idempotency.keys(), at="after")
    async with client(server, database=database_url) as http:
        assert {one["email"] for one in data_of(await http.get("/api/people?limit=50"))} == set(EMAILS)
        assert data_of(await http.get(f"/api/people?filter=email:eq:{EMAILS[3]}")) == []

        def end_at_once(rows: int) -> None:
            raise RuntimeError("ended")

        before = {(one.place, one.count, one.is_current) for one in await server.keys.status("Person")}
        assert before == {("", 20, False), ("person_histories", 20, False)}

        for _ in range(5):
            with pytest.raises(RuntimeError, match="ended"):
                await server.keys.rotate("Person", plaintext=True, page_size=3, on_rows=end_at_once)
        report = await server.keys.rotate("Person", plaintext=True)

        assert (report.rotated, report.complete) == (20, True)
        [found] = data_of(await http.get(f"/api/people?filter=email:eq:{EMAILS[3]}"))
        assert found["email"] == EMAILS[3]
        error_of(await http.post("/api/people", json={"name": "y", "email": EMAILS[5]}), 409, "CONFLICT")
        assert "uq_people_email" not in await indexes(database_url, "people")
        [after] = await server.keys.status("Person")
        assert (after.place, after.count, after.is_current) == ("", 20, True)
        history = await http.get(f"/api/people/{found['id']}/history")
        assert "email" not in history.json()["data"][0]["snapshot"]
        content = await stored_bytes(database_url)
    assert [email for email in EMAILS if email.encode() in content] == []

    with pytest.raises(DeclarationError, match=r"maniflex keys decrypt .*--model Person --field email"):
        await _start(database_url, Person)
    decrypting = a_clinic(Person, keys_required=False)
    async with client(decrypting, database=database_url):
        report = await decrypting.keys.decrypt(Person, "email")
        assert (report.rotated, report.complete) == (20, True)
    async with client(server_of(Person), database=database_url) as http:
        assert {one["email"] for one in data_of(await http.get("/api/people?limit=50"))} == set(EMAILS)


def server_of(*models: type[Model]) -> Server:
    server = Server()
    server.register(*models)
    return server


async def _start(url: str, *models: type[Model]) -> None:
    async with client(server_of(*models), database=url):
        pass


APP = """
from maniflex import Config, Model, Server, field
from maniflex.encryption import EnvKeyProvider

class Card(Model):
    owner: str
    number: str = field(encrypted=True)

server = Server(Config.from_env())
server.register(Card)
server.set_key_provider(EnvKeyProvider({current}))
"""


def test_the_commands_rotate_and_tell(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(APP.format(current=""))
    commands = Commands(tmp_path, database_url, monkeypatch)
    line = commands("keys", "generate", "next-one").strip()
    assert line.startswith("MFX_KEY_NEXT_ONE=")
    for name in ("two words", "a=b", "schlüssel", ""):
        assert "key ids have ASCII letters" in commands("keys", "generate", name, code=2)
    monkeypatch.setenv("MFX_KEY_DEFAULT", generate_key())
    monkeypatch.setenv(*line.split("=", 1))

    class Card(Model):
        owner: str
        number: str = field(encrypted=True)

    async def fill_cards() -> None:
        async with client(a_clinic(Card, provider=EnvKeyProvider()), database=database_url) as http:
            for number in range(5):
                await created(http, "/api/cards", owner="Ada", number=str(number))

    asyncio.run(fill_cards())
    assert "0 values are not under a current key" in commands("keys", "status", "app:server")
    (tmp_path / "app.py").write_text(APP.format(current="current={'default': 'next-one'}"))
    assert "5 values are not under a current key" in commands("keys", "status", "app:server")
    assert "5 rows, 5 to rotate, 0 failures" in commands("keys", "check", "app:server")
    assert "5 rows, 5 rotated, 0 failures" in commands("keys", "rotate", "app:server", "--model", "Card")
    [count] = commands.json("keys", "status", "app:server")
    assert (count["key_id"], count["count"], count["is_current"]) == ("next-one", 5, True)
    assert os.environ["MFX_KEY_DEFAULT"] not in commands("keys", "status", "app:server")


async def test_the_doctor_names_what_is_not_under_a_current_key(database_url: str) -> None:
    async with client(a_clinic(Note, provider=old_keys()), database=database_url) as http:
        await created(http, "/api/notes", name="a", text="secret", code="c")
        server = a_clinic(Note, provider=old_keys())
    for provider, text in (
        (new_keys(), "maniflex keys rotate"),
        (new_keys(without_old=True), "give that key back to the key provider"),
    ):
        server = sound_server(database_url, Note)
        server.set_key_provider(provider)
        findings = [one for one in await stored(server) if one.code == "T158"]
        assert len(findings) == 2
        assert all(text in one.fix for one in findings)


async def test_the_doctor_names_keys_that_nothing_uses(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key_id in ("DEFAULT", "NOTES", "FIRST_ONE", "NEXT_ONE", "PASSPORT", "LOST_KEY"):
        monkeypatch.setenv(f"MFX_KEY_{key_id}", generate_key())
    before = a_clinic(Note, provider=EnvKeyProvider(current={"notes": "first-one"}))
    before.work.enable()
    async with client(before, database=database_url) as http:
        await created(http, "/api/notes", name="a", text="secret", code="c")

    def a_server() -> Server:
        server = sound_server(database_url, Note)
        server.set_key_provider(EnvKeyProvider(current={"notes": "next-one", "noets": "next-one"}))

        @server.work.handler("kyc.check", encrypted="passport")
        async def check(run: Run) -> None:
            """Nothing."""

        return server

    findings = [one for one in await stored(a_server()) if one.code == "T159"]
    assert sorted((one.where, "did you mean 'notes'" in one.fix) for one in findings) == [
        ("current={'noets': …} of the key provider", True),
        ("the variable MFX_KEY_DEFAULT", False),
        ("the variable MFX_KEY_LOST_KEY", False),
    ]
    # A value is stored under MFX_KEY_FIRST_ONE still, which nothing declares.
    assert not any(os.environ["MFX_KEY_LOST_KEY"] in f"{one.why}{one.fix}" for one in findings)


KILLED_APP = """
from maniflex import Config, Model, Server, WithDeletedAt, field
from maniflex.encryption import MemoryKeyProvider

class Note(Model, WithDeletedAt, versioned=True, optimistic_lock=True):
    name: str
    text: str | None = field(default=None, encrypted="notes")
    code: str | None = field(default=None, encrypted="notes", unique=True)

server = Server(Config.from_env())
server.register(Note)
keys = {keys!r}
server.set_key_provider(MemoryKeyProvider(keys, current={{"notes": "notes-2"}}, index_key="default"))
"""


async def test_a_rotation_that_is_killed_again_and_again_loses_no_write(
    tmp_path: Path, database_url: str, long_mode: bool
) -> None:
    count, kills = (100_000, 20) if long_mode else (3_000, 4)
    server = a_clinic(Note, provider=old_keys())
    async with client(server, database=database_url):
        for start in range(0, count, 1000):
            async with server.transaction():
                for number in range(start, start + 1000):
                    await server.db(Note).create(name=f"n{number}", text=f"text {number}")
        tags = {one.id: one.updated_at for one in await server.db(Note).list(limit=None)}
    (tmp_path / "app.py").write_text(KILLED_APP.format(keys={**KEYS, "notes-2": SECOND}))
    command = [MANIFLEX, "keys", "rotate", "app:server", "--page-size", "10"]
    environment = {**os.environ, "PYTHONPATH": IMPORTS, "DB_WRITE_URL": database_url}
    server = a_clinic(Note, provider=new_keys())
    patched: dict[str, str] = {}
    async with client(server, database=database_url):
        ids = random.sample(sorted(tags), 200)

        async def stale() -> int:
            counts = await server.keys.status(Note)
            return sum(one.count for one in counts if not one.is_current)

        left = count
        for kill in range(kills):
            process = await asyncio.create_subprocess_exec(
                *map(str, command), cwd=tmp_path, env=environment, stdout=asyncio.subprocess.DEVNULL
            )
            aim = left - random.randrange(1, max(left // (2 * kills), 2))
            while process.returncode is None and await stale() > aim:
                record_id = random.choice(ids)
                patched[record_id] = f"patched {kill} {len(patched)}"
                await server.db(Note).update(record_id, text=patched[record_id])
            if process.returncode is None:
                process.kill()
            await process.wait()
            left = await stale()
        report = await server.keys.rotate(Note)
        assert (report.complete, await stale()) == (True, 0)
    server = a_clinic(Note, provider=new_keys(without_old=True))
    async with client(server, database=database_url):
        notes = {one.id: one for one in await server.db(Note).list(limit=None)}
    assert len(notes) == count
    for record_id, note in notes.items():
        if record_id in patched:
            assert note.text == patched[record_id]
        else:
            assert note.text == f"text {note.name[1:]}"
            assert note.updated_at == tags[record_id]
    assert patched


PLAIN_APP = """
from maniflex import Config, Model, Server, field
from maniflex.encryption import MemoryKeyProvider

class Person(Model, versioned=True, table="people"):
    name: str
    email: str = field(encrypted=True, unique=True)

server = Server(Config.from_env())
server.register(Person)
server.set_key_provider(MemoryKeyProvider({keys!r}))
"""


async def test_encrypting_plain_texts_goes_on_after_kills(
    tmp_path: Path, database_url: str, long_mode: bool
) -> None:
    """A process with `keys rotate --plaintext` is killed with SIGKILL while it writes, and called again."""
    count, kills = (10_000, 5) if long_mode else (600, 2)
    async with started(database_url, Person) as before_keys, before_keys.transaction():
        for number in range(count):
            await before_keys.db(Person).create(name="x", email=f"person-{number}@secret.example")
    encrypted = model(
        "Person", "people", {"name": str, "email": (str, field(encrypted=True, unique=True))}, versioned=True
    )
    (tmp_path / "app.py").write_text(PLAIN_APP.format(keys=dict(KEYS)))
    command = [MANIFLEX, "keys", "rotate", "app:server", "--plaintext", "--page-size", "5"]
    environment = {**os.environ, "PYTHONPATH": IMPORTS, "DB_WRITE_URL": database_url}

    async def run() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *map(str, command), cwd=tmp_path, env=environment, stdout=asyncio.subprocess.DEVNULL
        )

    server, killed = a_clinic(encrypted), 0
    async with client(server, database=database_url) as http:

        async def plain() -> int:
            [row] = await server.raw_query("SELECT count(*) AS n FROM people WHERE email NOT LIKE 'enc:%'")
            return int(row["n"])

        for _ in range(kills):
            process, before = await run(), await plain()
            while process.returncode is None and await plain() > before - count // (2 * kills):
                pass
            if process.returncode is None:
                process.kill()
                killed += 1
            await process.wait()
            assert 0 < await plain() < count
        last = await run()
        assert await last.wait() == 0
        assert await plain() == 0
        assert killed == kills
        emails = {one["email"] for one in data_of(await http.get("/api/people?limit=100"))}
        assert len(emails) == min(100, count)
        assert all(email.endswith("@secret.example") for email in emails)
        error_of(
            await http.post("/api/people", json={"name": "y", "email": "person-5@secret.example"}),
            409,
            "CONFLICT",
        )
        content = await stored_bytes(database_url)
    assert b"@secret.example" not in content
