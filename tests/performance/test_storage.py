"""Files of any size pass through a storage in the same memory, and cost little more than a copy."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import _object_stores
from maniflex.storage import FileMeta, LocalStorage
from tests.kit.object_stores import ACCESS_KEY, ACCOUNT, ACCOUNT_KEY, SECRET_KEY, azure_storage, new_bucket
from tests.kit.processes import run_program

MB = 1024 * 1024
ALLOWED_MB = 64
ROUNDS = 5

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")

STREAMING = """
import asyncio, re, sys
from pathlib import Path
from maniflex.storage import FileMeta, from_address
from maniflex.storage import AzureStorage, S3Storage, LocalStorage

storage, megabytes = eval(sys.argv[1]), int(sys.argv[2])
piece = bytes(65536)

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

async def chunks():
    for number in range(megabytes * 16):
        if number % 64 == 0:
            most.append(resident())
        yield piece

async def first():
    yield piece

most = []

async def main():
    await storage.store("first", first(), FileMeta())  # what is loaded only then does not count
    before = resident()
    await storage.store("file", chunks(), FileMeta())
    size = 0
    async with await storage.open("file") as reader:
        async for chunk in reader:
            size += len(chunk)
            most.append(resident())
    await storage.delete("file")
    print(size, max(most) - before, flush=True)

asyncio.run(main())
"""


def growth(storage: str, megabytes: int) -> float:
    """How much memory a process needs beyond what it has, to store a file and to read it."""
    with run_program(STREAMING, storage, megabytes) as program:
        size, grown = program.hear().split()
    assert int(size) == megabytes * MB
    return float(grown)


@pytest.fixture
def megabytes(long_mode: bool) -> int:
    return 1024 if long_mode else 200


def test_a_large_file_in_a_directory_needs_little_memory(tmp_path: Path, megabytes: int) -> None:
    assert growth(f"LocalStorage({str(tmp_path)!r})", megabytes) < ALLOWED_MB


def test_a_large_file_in_s3_needs_little_memory(megabytes: int) -> None:
    with _object_stores.s3() as (endpoint, _):
        options = f"endpoint={endpoint!r}, access_key_id={ACCESS_KEY!r}, secret_access_key={SECRET_KEY!r}"
        assert growth(f"S3Storage({new_bucket(endpoint)!r}, {options})", megabytes) < ALLOWED_MB


def test_a_large_file_in_azure_needs_little_memory(megabytes: int) -> None:
    if os.environ.get(_object_stores.NO_AZURE) == "1":
        pytest.skip("Azure is left out on request")
    try:
        azure = _object_stores.azure(install=False)
        with azure as (endpoint, _):
            container = re.findall("az://([^']*)", repr(azure_storage(endpoint)))[0]
            options = f"account={ACCOUNT!r}, account_key={ACCOUNT_KEY!r}, endpoint={endpoint!r}"
            assert growth(f"AzureStorage({container!r}, {options})", megabytes) < ALLOWED_MB
    except _object_stores.NoObjectStore as problem:
        pytest.skip(f"{problem}; scripts/test installs it")


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: what a disk costs varies more than what is measured."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


async def test_storing_costs_no_more_than_half_of_a_copy_on_top(memory_path: Path) -> None:
    piece = secrets.token_bytes(65536)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(200 * 16):
            yield piece

    async def copy() -> None:
        """What one would write by hand: batches of 1 MB to a thread, and all of it to the disk."""
        with (memory_path / secrets.token_hex(8)).open("wb", buffering=0) as file:
            batch = bytearray()
            async for chunk in chunks():
                batch += chunk
                if len(batch) >= MB:
                    await asyncio.to_thread(file.write, bytes(batch))
                    batch.clear()
            await asyncio.to_thread(os.fsync, file.fileno())

    async def store() -> None:
        await LocalStorage(memory_path / "uploads").store(secrets.token_hex(8), chunks(), FileMeta())

    costs: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, call in (("copy", copy), ("store", store)):
            start = time.process_time()
            await call()
            spent = time.process_time() - start
            costs[name] = min(spent, costs.get(name, spent))

    assert costs["store"] < 1.5 * costs["copy"], costs
