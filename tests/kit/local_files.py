"""What the tests of files in a directory share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from maniflex.storage import FileMeta, LocalStorage


async def some(data: bytes = b"data") -> AsyncIterator[bytes]:
    yield data


def files(root: Path) -> list[str]:
    """All files below a directory, temporary ones too."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def names(folder: Path) -> list[str]:
    """What is in a folder itself."""
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[Path, bytes]:
    """Everything below a folder, and what is in it."""
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


async def put(storage: LocalStorage, key: str, data: bytes = b"data") -> FileMeta:
    return await storage.store(key, some(data), FileMeta("name.txt", "text/plain"))


async def read(storage: LocalStorage, key: str) -> bytes:
    async with await storage.open(key) as reader:
        return await reader.read()
