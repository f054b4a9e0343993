"""What `file(...)` takes, and what stops the start."""

from __future__ import annotations

from pathlib import Path
from types import new_class
from typing import Any

import pytest

from maniflex import Model, Server, field, file
from maniflex.errors import ConfigError, DatabaseError, DeclarationError
from maniflex.model.field import FileRules
from maniflex.storage import MemoryStorage, S3Storage
from tests.kit.declarations import meta_of
from tests.kit.files import Album, an_archive
from tests.kit.http import data_of, error_of

any_file: Any = file  # for options that a type checker would refuse


def problems_of(*models: type[Model], **settings: Any) -> str:
    server = Server(":memory:", **settings)
    server.register(*models)
    with pytest.raises(DeclarationError) as refusal:
        server.seal()
    return str(refusal.value)


def test_every_option_is_kept() -> None:
    class Post(Model):
        scans: list[str] = file(
            default_factory=list,
            max_size="2KB",
            accept=["Image/*", "application/pdf"],
            acl="public",
            auto_delete=False,
            upload="stream",
            max_count=7,
            sniff=True,
            inline=False,
        )

    assert meta_of(Post).by_name["scans"].extra["file"] == FileRules(
        max_size=2048,
        accept=("image/*", "application/pdf"),
        acl="public",
        auto_delete=False,
        upload="stream",
        max_count=7,
        sniff=True,
        inline=False,
        is_list=True,
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_size": "two"}, "max_size 'two' is not a size"),
        ({"accept": ["pictures"]}, "'pictures' is not a media type"),
        ({"acl": "secret"}, "unknown acl 'secret'"),
        ({"upload": "forms"}, "unknown upload 'forms'; use form, stream, presigned; did you mean 'form'?"),
        ({"max_count": 3}, "max_count needs a list[str]"),
        ({"sniff": "yes"}, "sniff must be True or False"),
        ({"sortable": True}, "sortable cannot be set on a file field"),
        ({"searchable": True}, "searchable cannot be set on a file field"),
        ({"unique": True}, "unique cannot be set on a file field"),
        ({"encrypted": True}, "encrypted cannot be set on a file field"),
        ({"pattern": "a"}, "pattern cannot be set on a file field"),
        ({"max_length": 5}, "max_length cannot be set on a file field"),
        ({"alias": "restore"}, "cannot be called 'restore'"),
        ({"alias": "history"}, "cannot be called 'history'"),
        ({"alias": "export"}, "cannot be called 'export'"),
    ],
)
def test_what_a_file_field_cannot_have_stops_the_start(options: dict[str, Any], sentence: str) -> None:
    class Post(Model):
        cover: str | None = any_file(default=None, **options)

    assert sentence in problems_of(Post)


@pytest.mark.parametrize("kind", [int, dict[str, str], list[int], bytes, str | int])
def test_a_file_field_of_another_type_stops_the_start(kind: Any) -> None:
    body = {"__module__": __name__, "__annotations__": {"cover": kind}, "cover": any_file()}
    post: Any = new_class("Post", (Model,), {}, lambda names: names.update(body))

    assert "Post.cover" in problems_of(post, storage="memory:")


def test_a_query_model_has_no_files() -> None:
    class Report(Model, query="SELECT 'a' AS cover"):
        cover: str | None = file(default=None)

    assert "file cannot be set on a query model" in problems_of(Report, storage="memory:")


def test_files_without_a_storage_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for storage in ("memory:", None):
        assert "no storage to upload to" not in caplog.text
        server = Server(":memory:", storage=storage)
        server.register(Album)
        server.seal()
    assert "Album: there are file fields, but no storage to upload to" in caplog.text


def test_a_count_that_is_none_stops_the_start() -> None:
    class Post(Model):
        scans: list[str] = file(default_factory=list, max_count=0)

    assert "max_count must be a whole number of files, not 0" in problems_of(Post)


def test_a_model_in_a_database_of_its_own_has_no_files(tmp_path: Path) -> None:
    class Post(Model, database=f"sqlite:///{tmp_path}/other.db"):
        cover: str | None = file(default=None)

    assert "share no transaction" in problems_of(Post, storage="memory:")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"storage": "ftp://host"}, "storage: an address is file:uploads"),
        ({"storage": 7}, "storage: a int is neither an address nor a storage"),
        ({"storage": "file:/proc/nowhere"}, "cannot be made or written"),
        (
            {"files_middleware": [lambda ctx: None]},
            "files_middleware: <lambda>: it is called with (ctx, next)",
        ),
    ],
)
def test_settings_of_files_that_cannot_be_used_stop_the_start(
    settings: dict[str, Any], sentence: str
) -> None:
    assert sentence in problems_of(Album, **settings)


def test_urls_that_no_bucket_signs_stop_the_start() -> None:
    pytest.importorskip("obstore")
    bucket = S3Storage("bucket", region="eu-1", access_key_id="a", secret_access_key="b")

    assert "signed_url_ttl: S3Storage signs URLs for 7 days" in problems_of(
        Album, storage=bucket, signed_url_ttl=8 * 24 * 3600
    )


def test_a_storage_is_set_until_the_server_is_sealed() -> None:
    server = Server(":memory:")
    server.register(Album)
    server.set_storage("memory:")
    server.seal()

    assert server.files.has_storage
    with pytest.raises(DeclarationError):
        server.set_storage(MemoryStorage())


def test_settings_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(ConfigError) as refusal:
        Server(files_path="", files_read="all", files_signing_key="short", file_key=7)  # type: ignore[arg-type]

    for name in ("files_path", "files_read", "files_signing_key", "file_key"):
        assert f"{name}: " in str(refusal.value)


def test_a_signing_key_is_in_no_representation() -> None:
    server = Server(":memory:", files_signing_key="a secret of some length")

    assert "secret" not in repr(server.config)


async def test_a_server_without_files_has_no_tables_of_files(database_url: str) -> None:
    class Note(Model):
        text: str

    server = Server(database_url)
    server.register(Note)
    async with server.lifespan():
        for table in ("stored_file", "file_link", "maniflex_secret"):
            with pytest.raises(DatabaseError):
                await server.raw_query(f"SELECT * FROM {table}")


async def test_of_a_file_it_can_only_be_asked_whether_there_is_one(database_url: str) -> None:
    class Post(Model, aggregate=True):
        cover: str | None = file(default=None, filterable=True)
        text: str = field(default="", filterable=True)

    async with an_archive(database_url, Post) as archive:
        key = await archive.put()
        await archive.http.post("/api/posts", json={"cover": key})
        await archive.http.post("/api/posts", json={})

        with_cover = data_of(await archive.http.get("/api/posts", params={"filter": "cover:not_null"}))
        by_key = await archive.http.get("/api/posts", params={"filter": f"cover:eq:{key}"})
        by_other = await archive.http.get("/api/posts", params={"filter": "text:eq_field:cover"})
        grouped = await archive.http.get("/api/posts/aggregate", params={"group_by": "cover", "count": "id"})

    assert [post["cover"] for post in with_cover] == [key]
    error_of(by_key, 400, "INVALID_QUERY")
    error_of(by_other, 400, "INVALID_QUERY")
    error_of(grouped, 400, "INVALID_QUERY")
