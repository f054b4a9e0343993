"""Links in a directory of files, put there at any level and at any moment, are not followed."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from maniflex.errors import ConfigError, FileNotFound, StorageError
from maniflex.storage import FileMeta, LocalStorage
from maniflex.storage.local import INCOMING
from tests.kit.local_files import contents, files, put, read

SECRET = b"the secret"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "uploads"
    place.mkdir()
    return place


@pytest.fixture
def storage(root: Path) -> LocalStorage:
    return LocalStorage(root)


CALLS: dict[str, Callable[[LocalStorage, str], Awaitable[Any]]] = {
    "store": put,
    "open": lambda storage, key: storage.open(key),
    "delete": lambda storage, key: storage.delete(key),
    "stat": lambda storage, key: storage.stat(key),
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory beside the storage, with a file and its metadata."""
    place = tmp_path / "outside"
    (place / "inner").mkdir(parents=True)
    meta = {"filename": "s", "content_type": "a/b", "etag": '"x"', "created_at": "2026-01-01T00:00:00+00:00"}
    for folder in (place, place / "inner"):
        (folder / "secret").write_bytes(SECRET)
        (folder / "secret.meta.json").write_text(json.dumps(meta))
    return place


def link_folder(root: Path, outside: Path) -> str:
    (root / "a").symlink_to(outside)
    return "a/secret"


def link_inner_folder(root: Path, outside: Path) -> str:
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "c").symlink_to(outside)
    return "a/b/c/inner/secret"


def link_file(root: Path, outside: Path) -> str:
    (root / "secret").symlink_to(outside / "secret")
    (root / "secret.meta.json").write_bytes((outside / "secret.meta.json").read_bytes())
    return "secret"


def link_meta(root: Path, outside: Path) -> str:
    (root / "secret").write_bytes(b"ours")
    (root / "secret.meta.json").symlink_to(outside / "secret.meta.json")
    return "secret"


def link_both(root: Path, outside: Path) -> str:
    (root / "secret").symlink_to(outside / "secret")
    (root / "secret.meta.json").symlink_to(outside / "secret.meta.json")
    return "secret"


def link_to_nothing(root: Path, outside: Path) -> str:
    (root / "secret").symlink_to(outside / "new")
    return "secret"


LINKS = (link_folder, link_inner_folder, link_file, link_meta, link_both, link_to_nothing)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("attack", LINKS, ids=lambda attack: attack.__name__)
async def test_a_link_is_not_followed(
    storage: LocalStorage,
    root: Path,
    outside: Path,
    attack: Callable[[Path, Path], str],
    call: str,
) -> None:
    key = attack(root, outside)
    before = contents(outside)

    if call == "delete" and attack in (link_meta, link_file):
        await storage.delete(key)  # one of the two files is ours, and the link beside it stays
    else:
        with pytest.raises((FileNotFound, StorageError)):
            await CALLS[call](storage, key)

    assert not await storage.exists(key)
    assert contents(outside) == before
    assert [key async for key in storage.list_keys()] == []


async def test_a_linked_place_for_uploads_is_not_followed(
    storage: LocalStorage, root: Path, outside: Path
) -> None:
    (root / INCOMING).symlink_to(outside)

    with pytest.raises(StorageError):
        await put(storage, "file")
    with pytest.raises(ConfigError) as refused:
        storage.prepare()
    problem = str(refused.value)

    assert str(root) in problem
    assert files(outside) == ["inner/secret", "inner/secret.meta.json", "secret", "secret.meta.json"]


async def test_a_folder_that_becomes_a_link_during_an_upload_is_not_followed(
    storage: LocalStorage, root: Path, outside: Path
) -> None:
    before = contents(outside)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"first"
        (root / "a").symlink_to(outside)
        yield b"second"

    with pytest.raises(StorageError):
        await storage.store("a/new", chunks(), FileMeta())

    assert contents(outside) == before
    assert contents(root / INCOMING) == {}


async def test_the_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    storage = LocalStorage(tmp_path / "link")

    await put(storage, "a/b")

    assert (tmp_path / "disk" / "a" / "b").read_bytes() == b"data"


@pytest.mark.parametrize("call", ["open", "stat", "delete"])
async def test_a_pipe_or_a_folder_is_no_file(storage: LocalStorage, root: Path, call: str) -> None:
    await put(storage, "a/b")
    os.mkfifo(root / "pipe")
    os.mkfifo(root / "c")
    os.mkfifo(root / "c.meta.json")
    for key in ("pipe", "c", "a"):
        with pytest.raises(FileNotFound):
            await CALLS[call](storage, key)
    assert await read(storage, "a/b") == b"data"
