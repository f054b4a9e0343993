"""Files in forms: stored with the record, its links and its rows or not at all; several in an order."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Context, Model, Next, Operation, Server, belongs_to, field, file, has_many
from maniflex.admin import Inline, ModelAdmin
from maniflex.admin.tables import AdminEvent
from maniflex.middleware import auth
from tests.admin.test_forms import PNG, controls_of
from tests.kit.attacks import ATTACKS
from tests.kit.panel import Browser, text_of, visiting


class Album(Model):
    title: str = field(min_length=2)
    cover: str | None = file(default=None, accept=["image/*"], max_size="1KB")
    photos: list[str] = file(default_factory=list, accept=["image/*"], max_count=4)
    notes: list[Note] = has_many()


class Note(Model):
    album_id: str = field(filterable=True, on_delete="cascade")
    album: Album | None = belongs_to()
    text: str = field(min_length=3)


def make_server() -> Server:
    server = Server(storage="memory:")
    server.register(Album, Note)
    server.admin().add(ModelAdmin(Album, inlines=[Inline(Note, columns=("text",))]))
    return server


def picture(name: str, number: int = 0) -> tuple[str, bytes, str]:
    return name, PNG + bytes([number]), "image/png"


async def file_states(server: Server) -> list[str]:
    rows = await server.raw_query("SELECT state FROM stored_file ORDER BY id")
    return sorted(str(row["state"]) for row in rows)


async def test_a_refused_row_leaves_neither_the_record_nor_its_file(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        controls = controls_of(await browser.get("/albums/new"))
        controls |= {"f.title": "Summer", "inline.notes.0.text": "no", "inline.notes.1.text": "fine"}
        refused = await browser.post("/albums", controls, files={"f.cover": picture("a.png")})
        assert refused.status_code == 422
        assert "notes[0].text" in text_of(refused.text)
        assert "choose the file again" in text_of(refused.text)
        again = controls_of(refused.text)
        assert (again["f.title"], again["inline.notes.1.text"]) == ("Summer", "fine")
        assert await server.db(Album).count() == await server.db(Note).count() == 0
        assert "linked" not in await file_states(server)
        assert set(await file_states(server)) <= {"condemned"}
        assert await server.db(AdminEvent).count({"action": "create"}) == 0

        again |= {"inline.notes.0.text": "now"}
        path = await browser.send("/albums", again, files={"f.cover": picture("a.png")})
        assert (await browser.http.get(f"/admin{path}/file/cover")).content == picture("a.png")[1]
        first = (await server.db(Album).list())[0]
        assert await server.db(Note).count() == 2

        # a change: the old file and the old title stay
        controls = controls_of(await browser.get(f"{path}/edit"))
        controls |= {"f.title": "Winter", "inline.notes.0.text": "x"}
        refused = await browser.post(path, controls, files={"f.cover": picture("b.png", 7)})
        assert refused.status_code == 422
        kept = await server.db(Album).read(first.id)
        assert (kept.title, kept.cover) == ("Summer", first.cover)
        assert (await browser.http.get(f"/admin{path}/file/cover")).content == picture("a.png")[1]
        again = controls_of(refused.text) | {"inline.notes.0.text": "changed"}
        await browser.send(path, again, files={"f.cover": picture("b.png", 7)})
        assert (await browser.http.get(f"/admin{path}/file/cover")).content == picture("b.png", 7)[1]
        assert (await server.db(Album).read(first.id)).title == "Winter"
        assert (await file_states(server)).count("linked") == 1
        events = await server.db(AdminEvent).list({"model": "Album"}, "id")
        assert [(one.action, sorted(one.fields)) for one in events] == [
            ("create", ["cover", "notes", "title"]),
            ("update", ["cover", "notes", "title"]),
        ]


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({"f.cover": ("a.txt", b"text", "text/plain")}, 415),
        ({"f.cover": ("a.png", PNG + bytes(2000), "image/png")}, 413),
        ([("f.photos", picture(f"{n}.png")) for n in range(5)], 422),
    ],
)
async def test_a_wrong_file_is_named_at_its_field(database_url: str, files: Any, status: int) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        controls = controls_of(await browser.get("/albums/new")) | {"f.title": "Summer"}
        refused = await browser.post("/albums", controls, files=files)
        name = "photos" if isinstance(files, list) else "cover"
        assert refused.status_code == status, text_of(refused.text)[:300]
        assert f'href="#field-{name}"' in refused.text
        assert controls_of(refused.text)["f.title"] == "Summer"
        assert await server.db(Album).count() == 0
        assert set(await file_states(server)) <= {"condemned"}


async def test_rules_for_files_see_those_of_the_panel(sqlite_url: str) -> None:
    server = make_server()
    names: list[str] = []

    @server.pipeline.validate.middleware(models=[Album], operations=[Operation.CREATE])
    async def scan(ctx: Context, next: Next) -> None:
        names.extend(one.filename for one in ctx.files.values())
        if "bad.png" in names:
            ctx.abort(422, "VIRUS", "this is no good file")
        await next()

    async with visiting(server, sqlite_url) as browser:
        controls = controls_of(await browser.get("/albums/new")) | {"f.title": "Summer"}
        refused = await browser.post("/albums", controls, files={"f.cover": picture("bad.png")})
        assert "no good file" in text_of(refused.text)
        assert await server.db(Album).count() == 0
        assert await file_states(server) == []


async def _names(browser: Browser, path: str) -> list[int]:
    contents = []
    for index in range(5):
        answer = await browser.http.get(f"/admin{path}/file/photos?index={index}")
        contents += [answer.content[-1]] if answer.status_code == 200 else []
    return contents


async def test_several_files_have_an_order(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        controls = controls_of(await browser.get("/albums/new")) | {"f.title": "Summer"}
        pictures = [("f.photos", picture(f"{n}.png", n)) for n in (1, 2, 3)]
        path = await browser.send("/albums", controls, files=pictures)
        assert await _names(browser, path) == [1, 2, 3]
        page = await browser.get(path)
        assert 'file/photos?index=2">3.png</a>' in page

        controls = controls_of(await browser.get(f"{path}/edit"))
        moved = controls | {
            "files.photos.2.place": "1",
            "files.photos.0.place": "2",
            "files.photos.1.place": "3",
        }
        await browser.send(path, moved, files=[("f.photos", picture("4.png", 4))])
        assert await _names(browser, path) == [3, 1, 2, 4]

        controls = controls_of(await browser.get(f"{path}/edit"))
        await browser.send(path, controls)
        assert "Nothing was changed" in text_of(await browser.get(path))
        await browser.send(path, controls | {"files.photos.1._delete": "1", "files.photos.2._delete": "1"})
        assert await _names(browser, path) == [3, 4]

        # a refused form keeps the order that was typed
        controls = controls_of(await browser.get(f"{path}/edit"))
        wrong = controls | {"f.title": "x", "files.photos.0.place": "9", "files.photos.1._delete": "1"}
        again = controls_of((await browser.post(path, wrong)).text)
        assert (again["files.photos.0.place"], again["files.photos.1._delete"]) == ("9", "1")

        # keys of others are the API's to refuse
        forged = controls | {"files.photos.0.key": "uploads/nobody/x.png"}
        assert (await browser.post(path, forged)).status_code in (403, 404, 409, 422)
        assert await _names(browser, path) == [3, 4]
        for index in ("x", "-1", "9" * 5000, "%D9%A1"):
            await browser.get(f"{path}/file/photos?index={index}", 404)


async def test_a_conflict_asks_for_the_file_again(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        album = await server.db(Album).create(title="Summer")
        path = f"/albums/{album.id}"
        controls = controls_of(await browser.get(f"{path}/edit")) | {"f.title": "Mine"}
        await server.db(Album).update(album.id, title="Theirs")
        page = await browser.post(path, controls, files={"f.cover": picture("a.png")})
        assert page.status_code == 409
        assert '<input id="f.cover" name="f.cover" type="file"' in page.text
        assert 'enctype="multipart/form-data"' in page.text
        assert set(await file_states(server)) <= {"condemned"}
        form = 'class="form"' + page.text[page.text.index("<main") :]
        again = controls_of(form) | {"take.title": "yours"}
        await browser.send(path, again, files={"f.cover": picture("a.png")})
        saved = await server.db(Album).read(album.id)
        assert saved.title == "Mine"
        assert saved.cover is not None


async def test_a_form_that_is_sent_twice_keeps_one_file(database_url: str) -> None:
    server = make_server()
    async with visiting(server, database_url) as browser:
        controls = controls_of(await browser.get("/albums/new")) | {"f.title": "Summer"}
        files = {"f.cover": picture("a.png")}
        first = await browser.send("/albums", controls, files=files)
        assert await browser.send("/albums", controls, files=files) == first
        assert await server.db(Album).count() == 1
        assert (await file_states(server)).count("linked") == 1
        assert set(await file_states(server)) <= {"linked", "condemned"}
        copy = await browser.send(first, controls | {"_then": "copy", "_key": "other"}, files=files)
        assert copy != first
        assert (await file_states(server)).count("linked") == 2


async def test_nothing_is_stored_for_somebody_who_may_not_save(database_url: str) -> None:
    server = make_server()
    server.pipeline.auth.register(auth.require_role("boss"), models=[Album], operations=Operation.WRITES)
    async with visiting(server, database_url) as browser:
        album = await server.db(Album).create(title="Summer")
        await browser.get("/albums")
        controls = {"f.title": "Forged", "_seen": '{"title": "Summer", "cover": null}', "_key": "k"}
        files = {"f.cover": picture("a.png")}
        for path, status in ((f"/albums/{album.id}", 403), ("/albums", 403), ("/albums/nobody", 404)):
            assert (await browser.post(path, controls, files=files)).status_code == status
        assert await file_states(server) == []
        assert (await server.db(Album).read(album.id)).title == "Summer"


class Pile(Model):
    title: str = ""
    papers: list[str] = file(default_factory=list, max_count=1000)


async def test_names_of_files_are_text(database_url: str) -> None:
    server = Server(storage="memory:")
    server.register(Pile)
    server.admin()
    names = [f"{attack}.png" for attack in ATTACKS]
    assert len(names) >= 100
    async with visiting(server, database_url) as browser:
        for start in range(0, len(names), 50):
            some = names[start : start + 50]
            controls = controls_of(await browser.get("/piles/new"))
            path = await browser.send(
                "/piles", controls, files=[("f.papers", picture(name)) for name in some]
            )
            refused = controls_of(await browser.get(f"{path}/edit")) | {"files.papers.0.key": some[0]}
            answer = await browser.post(path, refused, files=[("f.papers", picture(some[0]))])
            pages = [await browser.get(page) for page in (path, f"{path}/edit", "/piles", f"{path}/delete")]
            for page in [*pages, answer.text]:
                for tag in ("<script>", "<img src=x", "<svg", "<iframe", 'href="javascript', " onerror="):
                    assert tag not in page.lower(), start
            sent = await browser.http.get(f"/admin{path}/file/papers?index=1")
            assert sent.headers["content-disposition"] == "inline"
            assert "sandbox" in sent.headers["content-security-policy"]
