"""Addresses of storages, and every mistake in one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from maniflex.errors import ConfigError
from maniflex.storage import (
    AzureStorage,
    GCSStorage,
    LocalStorage,
    MemoryStorage,
    S3Storage,
    from_address,
)
from tests.kit.processes import IMPORTS


@pytest.mark.parametrize(
    ("address", "kind", "shown"),
    [
        ("file:uploads", LocalStorage, "LocalStorage('uploads')"),
        ("file:///var/my%20uploads", LocalStorage, "LocalStorage('/var/my uploads')"),
        ("file:/var/uploads", LocalStorage, "LocalStorage('/var/uploads')"),
        ("memory:", MemoryStorage, "MemoryStorage(max_bytes=268435456)"),
        ("s3://bucket", S3Storage, "S3Storage('s3://bucket')"),
        ("s3://bucket/a/b/?region=eu-west-1&path_style=true", S3Storage, "S3Storage('s3://bucket')"),
        ("gs://bucket/p", GCSStorage, "GCSStorage('gs://bucket')"),
        ("az://container/p?account=acc", AzureStorage, "AzureStorage('az://container')"),
    ],
)
def test_an_address_names_a_storage(address: str, kind: type, shown: str) -> None:
    storage = from_address(address)
    assert type(storage) is kind
    assert repr(storage) == shown


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("", "an address is file:uploads"),
        ("uploads", "an address is file:uploads"),
        ("file:", "names no directory"),
        ("file://host/path", "no host"),
        ("file:a?x=1", "no option 'x'"),
        ("memory:x", "nothing stands after memory:"),
        ("s3://", "names no bucket"),
        ("s3:bucket", "names no bucket"),
        ("s3://[bucket", "an address is"),
        ("s3://bucket?regoin=x", "did you mean 'region'?"),
        ("s3://bucket?region=a&region=b", "given twice"),
        ("s3://bucket?path_style=maybe", "path_style is true or false"),
        ("s3://bucket?presign=get", "presign is 'put' or 'post'"),
        ("s3://bucket?endpoint=http://minio.example.com", "allow_http=True"),
        ("s3://bucket?endpoint=minio", "endpoint is a URL"),
        ("s3://bucket/a/../b", "begins with a dot"),
        ("s3://bucket#x", "no fragment"),
        ("gs://bucket?region=x", "no option 'region'"),
        ("az://c?endpoint=http://x.example.com&account=a", "allow_http=True"),
    ],
)
def test_a_mistake_in_an_address_is_named(address: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_address(address)
    assert words in str(caught.value)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        from_address("s3://?regoin=x&path_style=2#y")
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize("address", ["s3://key:hunter2@bucket", "s4://key:hunter2@bucket", "hunter2@x"])
def test_credentials_in_an_address_are_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_address(address)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "https://u:p@minio.example.com"},
        {"access_key_id": "a"},
        {"secret_access_key": "b"},
        {"key_prefix": "../x"},
    ],
    ids=str,
)
def test_a_mistake_in_a_constructor_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="S3Storage"):
        S3Storage("bucket", **options)
    with pytest.raises(ConfigError, match="bucket is empty"):
        S3Storage("")
    S3Storage("bucket", endpoint="http://minio.example.com", allow_http=True)


WITHOUT = """
import sys
sys.modules.update({"obstore": None, "botocore": None})
from maniflex.errors import ConfigError
from maniflex.storage import LocalStorage, from_address
from_address("memory:"), from_address("file:x")
for address in ("s3://b", "gs://b", "az://b"):
    try:
        from_address(address)
    except ConfigError as problem:
        print(problem)
"""


def test_a_missing_package_is_named_with_the_line_that_installs_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, env={"PYTHONPATH": IMPORTS}
    )
    assert done.stdout.splitlines() == [
        f'{name} needs obstore: pip install "maniflex[storage]"'
        for name in ("S3Storage", "GCSStorage", "AzureStorage")
    ], done.stderr


def test_forms_without_botocore_name_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(ConfigError, match=r"maniflex\[storage-post\]"):
        S3Storage("bucket", presign="post")
