"""Keys in JSON bodies: which files a caller may name, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Context, Model, Next, Server, file
from maniflex.errors import UnknownFile
from maniflex.files.owner import NOBODY
from maniflex.files.store import FileState
from maniflex.storage import FileMeta
from maniflex.testing import client
from tests.kit.files import PDF, PNG, Album, an_archive, in_pieces
from tests.kit.http import created, data_of, error_of, offenders


async def test_a_body_names_a_stored_file_and_null_empties_the_field(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        key = await archive.put()

        album = await created(archive.http, "/api/albums", cover=key)
        assert album["cover"] == key
        assert await archive.state(key) is FileState.LINKED

        emptied = await archive.http.patch(f"/api/albums/{album['id']}", json={"cover": None})
        assert data_of(emptied)["cover"] is None
        assert await archive.swept() == set()


async def test_an_object_without_a_row_cannot_be_named(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        await archive.storage.store("private/wages.png", in_pieces(PNG), FileMeta("w.png", "image/png"))

        for key in ("private/wages.png", "uploads/none", "../etc/passwd", "", "a" * 2000):
            response = await archive.http.post("/api/albums", json={"cover": key})
            assert response.status_code == 422, key
        alone = await archive.http.post("/api/albums", json={"cover": "uploads/none"})
        in_a_list = await archive.http.post("/api/albums", json={"scans": ["private/wages.png"]})

        error_of(alone, 422, "FILE_NOT_FOUND")
        assert error_of(in_a_list, 422, "FILE_NOT_FOUND")["details"][0]["field"] == "scans"
        assert await archive.objects() == {"private/wages.png"}


async def test_code_cannot_name_what_is_not_stored_either(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        with pytest.raises(UnknownFile):
            await archive.server.db(Album).create(cover="uploads/none")

        assert await archive.server.db(Album).count() == 0


async def test_the_rules_of_the_field_bind_files_that_are_named(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        large = await archive.put(PNG + bytes(100))
        exact = await archive.put(PNG + bytes(100 - len(PNG)))
        paper = await archive.put(PDF, "a.pdf")
        unknown = await archive.put(b"\x00\x01", "a.bin")

        assert (await archive.http.post("/api/albums", json={"cover": exact})).status_code == 201
        error_of(await archive.http.post("/api/albums", json={"cover": large}), 413, "FILE_TOO_LARGE")
        for key in (paper, unknown):
            response = await archive.http.post("/api/albums", json={"cover": key})
            error_of(response, 415, "FILE_TYPE_NOT_ALLOWED")


@pytest.mark.parametrize(
    "other",
    [
        {"x-tenant": "b"},
        {"x-tenant": "b", "x-user": "ada"},
        {"x-tenant": "a", "x-user": "bob"},
        {"x-tenant": "a"},
        {"x-user": "ada"},
        {},
    ],
)
async def test_a_file_of_another_caller_cannot_be_named(database_url: str, other: dict[str, str]) -> None:
    async with an_archive(database_url) as archive:
        key = await archive.upload_as(tenant="a", user="ada")
        own = await created(archive.http, "/api/albums", scans=[])

        alone = await archive.http.post("/api/albums", json={"cover": key}, headers=other)
        in_a_list = await archive.http.patch(f"/api/albums/{own['id']}", json={"scans": [key]}, headers=other)
        ada = {"x-tenant": "a", "x-user": "ada"}
        by_uploader = await archive.http.post("/api/albums", json={"cover": key}, headers=ada)

    error_of(alone, 403, "FILE_FORBIDDEN")
    error_of(in_a_list, 403, "FILE_FORBIDDEN")
    assert by_uploader.status_code == 201


async def test_a_file_of_a_caller_without_an_id_is_its_tenants(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        for other in ({"x-tenant": "a", "x-user": "bob"}, {"x-tenant": "a"}):
            key = await archive.upload_as(tenant="a")
            foreign = {**other, "x-tenant": "b"}
            refused = await archive.http.post("/api/albums", json={"cover": key}, headers=foreign)
            error_of(refused, 403, "FILE_FORBIDDEN")
            taken = await archive.http.post("/api/albums", json={"cover": key}, headers=other)
            assert taken.status_code == 201


async def test_a_file_in_reach_that_another_uploaded_is_forbidden_and_not_unknown(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        key = await archive.upload_as(user="ada")
        await archive.http.post("/api/albums", json={"cover": key}, headers={"x-user": "ada"})
        for other in ({"x-user": "bob"}, {"x-tenant": "b"}, {}):
            refused = await archive.http.post("/api/albums", json={"cover": key}, headers=other)
            error_of(refused, 403, "FILE_FORBIDDEN")


async def test_a_file_of_a_user_without_a_tenant_is_the_users(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        key = await archive.upload_as(user="ada")

        refused = await archive.http.post("/api/albums", json={"cover": key}, headers={"x-user": "bob"})
        taken = await archive.http.post("/api/albums", json={"cover": key}, headers={"x-user": "ada"})

    error_of(refused, 403, "FILE_FORBIDDEN")
    assert taken.status_code == 201


async def test_a_file_of_nobody_may_be_named_by_anybody(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        key = await archive.put()
        response = await archive.http.post("/api/albums", json={"cover": key}, headers={"x-tenant": "b"})

    assert response.status_code == 201


async def test_the_application_can_say_whose_a_file_is(database_url: str) -> None:
    def by_department(ctx: Context) -> str:
        return ctx.header("x-department") or ""

    async with an_archive(database_url, file_scope=by_department) as archive:
        ada, bob = ({"x-tenant": "a", "x-user": user} for user in ("ada", "bob"))
        sales, law = {"x-department": "sales"}, {"x-department": "law"}
        answer = await archive.http.post("/api/uploads", content=PNG, headers={**sales, **ada})
        key = data_of(answer)["key"]

        refused = await archive.http.post("/api/albums", json={"cover": key}, headers={**law, **ada})
        taken = await archive.http.post("/api/albums", json={"cover": key}, headers={**sales, **bob})
        for other in ({"x-tenant": "b", "x-user": "eve"}, {"x-user": "eve"}, {}):
            foreign = await archive.http.post("/api/albums", json={"cover": key}, headers={**sales, **other})
            error_of(foreign, 403, "FILE_FORBIDDEN")

    error_of(refused, 403, "FILE_FORBIDDEN")
    assert taken.status_code == 201


class Shelf(Model):
    house: str = ""
    cover: str | None = file(default=None)


async def test_files_of_callers_without_identity_belong_to_what_their_requests_are_bound_to(
    database_url: str,
) -> None:
    async def bind(ctx: Context, next: Next) -> None:
        ctx.query.force("house", ctx.header("x-house") or "")
        await next()

    async def store(ctx: Context, next: Next) -> None:
        stored_file = await server.files.store(PNG, filename="a.png")
        ctx.add_header("x-key", stored_file.key)
        await next()

    server = Server(storage="memory:")
    server.register(Shelf)
    server.pipeline.auth.register(bind, models=[Shelf])
    server.pipeline.service.register(store, models=[Shelf], operations=["create"])
    async with client(server, database=database_url) as http:
        key = (await http.post("/api/shelves", json={}, headers={"x-house": "red"})).headers["x-key"]

        refused = await http.post("/api/shelves", json={"cover": key}, headers={"x-house": "blue"})
        taken = await http.post("/api/shelves", json={"cover": key}, headers={"x-house": "red"})

    error_of(refused, 403, "FILE_FORBIDDEN")
    assert taken.status_code == 201


async def test_what_a_record_has_may_stay_whoever_minted_it(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        cover, scan = await archive.upload_as(tenant="a"), await archive.upload_as(tenant="a")
        own = {"x-tenant": "a"}
        album = data_of(
            await archive.http.post("/api/albums", json={"cover": cover, "scans": [scan]}, headers=own), 201
        )

        kept = await archive.http.patch(
            f"/api/albums/{album['id']}",
            json={"title": "new", "cover": cover, "scans": [scan]},
            headers={"x-tenant": "b"},
        )

        assert (data_of(kept)["cover"], data_of(kept)["scans"]) == (cover, [scan])


@pytest.mark.parametrize("acl", ["signed", "public"])
async def test_a_url_of_the_current_file_means_the_file(database_url: str, acl: str) -> None:
    async with an_archive(database_url) as archive:
        key, other = await archive.put(name="Grüße & mehr.png"), await archive.put()
        album = await created(archive.http, "/api/albums", cover=key, scans=[key, other])
        urls = await archive.files.desk.urls([key, other], acl)

        kept = data_of(
            await archive.http.patch(
                f"/api/albums/{album['id']}",
                json={"cover": f"https://api.example.com{urls[key]}", "scans": [urls[other], urls[key]]},
            )
        )
        foreign = await archive.http.post("/api/albums", json={"cover": urls[key]})

        assert (kept["cover"], kept["scans"]) == (key, [other, key])
        assert await archive.swept() == {key, other}
    error_of(foreign, 422, "FILE_NOT_FOUND")


async def test_a_list_replaces_the_list_and_lets_go_of_what_it_drops(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        one, two, three, four = [await archive.put() for _ in range(4)]
        album = await created(archive.http, "/api/albums", scans=[one, two, three])
        path = f"/api/albums/{album['id']}"

        reordered = await archive.http.patch(path, json={"scans": [three, one, two]})
        assert data_of(reordered)["scans"] == [three, one, two]
        assert await archive.swept() == {one, two, three, four}

        await archive.http.patch(path, json={"scans": [three, one]})
        assert await archive.swept() == {one, three, four}

        too_many = await archive.http.patch(path, json={"scans": [one, three, four, "uploads/no"]})
        twice = await archive.http.patch(path, json={"scans": [one, one]})
        assert data_of(await archive.http.get(path))["scans"] == [three, one]
    error_of(too_many, 422, "TOO_MANY_FILES")
    assert offenders(twice) == {"scans": "duplicate"}


async def test_a_hundred_files_are_the_most_unless_told(database_url: str) -> None:
    class Folder(Model):
        files: list[str] = file(default_factory=list)

    async with an_archive(database_url, Folder) as archive:
        stored = [await archive.put() for _ in range(101)]
        full = await archive.http.post("/api/folders", json={"files": stored[:100]})
        over = await archive.http.post("/api/folders", json={"files": stored})

    assert full.status_code == 201
    error_of(over, 422, "TOO_MANY_FILES")


async def test_a_key_is_checked_also_behind_a_validate_step_of_ones_own(database_url: str) -> None:
    async def own_validation(ctx: Context, next: Next) -> None:
        await next()

    class Plain(Model):
        cover: str | None = file(default=None)

    server = Server(storage="memory:")
    server.register(Plain)
    server.pipeline.validate.register(own_validation, at="replace")
    async with client(server, database=database_url) as http:
        key = (await server.files.store(PNG, filename="a.png")).key
        refused = await http.post("/api/plains", json={"cover": "uploads/none"})
        no_text = await http.post("/api/plains", json={"cover": 7})
        taken = await http.post("/api/plains", json={"cover": key})

    error_of(refused, 422, "FILE_NOT_FOUND")
    assert offenders(no_text) == {"cover": "type"}
    assert taken.status_code == 201


async def test_a_singleton_names_files_too(database_url: str) -> None:
    class Profile(Model, singleton=True):
        logo: str | None = file(default=None)

    async with an_archive(database_url, Profile) as archive:
        key = await archive.put()
        assert data_of(await archive.http.patch("/api/profiles", json={"logo": key}))["logo"] == key
        url = await archive.files.url(key)
        assert data_of(await archive.http.patch("/api/profiles", json={"logo": url}))["logo"] == key
        await archive.http.patch("/api/profiles", json={"logo": None})
        assert await archive.swept() == set()


async def test_a_minted_upload_is_looked_at_when_it_is_named(database_url: str) -> None:
    async with an_archive(database_url) as archive:
        desk = archive.files.desk
        rules = archive.server._seal().runtime.store(Album).meta.by_name["cover"].extra["file"]
        options: dict[str, Any] = {"content_type": "image/png", "owner": NOBODY, "rules": rules}
        early = await desk.mint(filename="a.png", size=None, **options)
        large = await desk.mint(filename="b.png", size=None, **options)
        fine = await desk.mint(filename="c.png", size=14, **options)
        meta = FileMeta("x.png", "image/png")
        await archive.storage.store(large.key, in_pieces(bytes(101)), meta)
        await archive.storage.store(fine.key, in_pieces(PNG), meta)

        error_of(await archive.http.post("/api/albums", json={"cover": early.key}), 422, "FILE_NOT_FOUND")
        error_of(await archive.http.post("/api/albums", json={"cover": large.key}), 413, "FILE_TOO_LARGE")
        assert (await archive.http.post("/api/albums", json={"cover": fine.key})).status_code == 201
        assert await archive.state(fine.key) is FileState.LINKED


async def test_of_two_keys_that_end_alike_a_url_means_its_own(database_url: str) -> None:
    names = iter(("b.png", "a/b.png"))
    async with an_archive(database_url, file_key=lambda *about: next(names)) as archive:
        short, long = await archive.put(), await archive.put()
        album = await created(archive.http, "/api/albums", scans=[short, long])
        urls = [await archive.files.url(key) for key in (long, short)]

        kept = await archive.http.patch(f"/api/albums/{album['id']}", json={"scans": urls})

    assert data_of(kept)["scans"] == [long, short]
