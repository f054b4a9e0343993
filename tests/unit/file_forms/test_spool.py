"""The spool of one request: memory, then one nameless file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from maniflex.errors import StorageError
from maniflex.features.files.forms import Spool


async def content_of(spool: Spool, start: int, end: int) -> bytes:
    return b"".join([chunk async for chunk in spool.read(start, end)])


@pytest.mark.parametrize("memory", [1, 100, 10_000])
async def test_what_is_written_is_read_whether_in_memory_or_on_disk(tmp_path: Path, memory: int) -> None:
    spool = Spool(memory, str(tmp_path))
    data = os.urandom(3_000)
    for start in range(0, len(data), 700):
        await spool.write(data[start : start + 700])
    assert spool.size == len(data)
    assert await content_of(spool, 0, 3_000) == data
    assert await content_of(spool, 1_234, 2_345) == data[1_234:2_345]
    assert os.listdir(tmp_path) == []  # it has no name
    spool.close()


async def test_nothing_stays_open_after_the_request(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    spool = Spool(10, str(tmp_path))
    await spool.write(b"x" * 100)
    spool.close()
    assert set(os.listdir("/proc/self/fd")) <= before
    with pytest.raises(StorageError):
        await content_of(spool, 0, 100)


async def test_a_disk_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    spool = Spool(10, str(tmp_path / "missing"))
    with pytest.raises(StorageError):
        await spool.write(b"x" * 100)
    spool.close()
