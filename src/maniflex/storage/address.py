"""Addresses of storages, as a setting or a variable has them.

>>> from_address("file:uploads")
LocalStorage('uploads')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from maniflex._clock import Clock
from maniflex._names import did_you_mean
from maniflex.errors import ConfigError
from maniflex.storage.local import LocalStorage
from maniflex.storage.memory import MemoryStorage
from maniflex.storage.object_store import AzureStorage, GCSStorage
from maniflex.storage.port import Storage
from maniflex.storage.s3 import S3Storage

FORMS = "file:uploads, memory:, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def from_address(address: str, *, clock: Clock | None = None) -> Storage:
    """The storage at an address, or `ConfigError` with every mistake in it."""
    scheme, colon, _ = address.partition(":")
    make = _SCHEMES.get(scheme.lower())
    if not colon or make is None:
        raise ConfigError(f"storage: an address is {FORMS}, not {_without_password(address)!r}")
    try:
        parts = urlsplit(address)
    except ValueError:
        raise ConfigError(f"storage: an address is {FORMS}, not {_without_password(address)!r}") from None
    return make(parts, clock)


def _local(parts: SplitResult, clock: Clock | None) -> Storage:
    path = unquote(parts.path)
    problems = _strangers("file:", parts, {})
    if parts.netloc not in ("", "localhost"):
        problems.append("storage: file: takes a path, as in file:uploads or file:///var/uploads, and no host")
    elif not path:
        problems.append("storage: file: names no directory; file:uploads does")
    if problems:
        raise ConfigError(*problems)
    return LocalStorage(path, clock=clock)


def _memory(parts: SplitResult, clock: Clock | None) -> Storage:
    if problems := _strangers("memory:", parts, {}):
        raise ConfigError(*problems)
    if parts.netloc or parts.path:
        raise ConfigError("storage: nothing stands after memory:")
    return MemoryStorage(clock=clock)


def _bucket(
    scheme: str, kind: Callable[..., Storage], readers: Mapping[str, Callable[[str], Any]]
) -> Callable[[SplitResult, Clock | None], Storage]:
    def make(parts: SplitResult, clock: Clock | None) -> Storage:
        problems = _strangers(f"{scheme}://", parts, readers)
        options: dict[str, Any] = {}
        for name, text in parse_qsl(parts.query, keep_blank_values=True):
            if name in readers:
                try:
                    options[name] = readers[name](text)
                except KeyError:
                    problems.append(f"storage: {name} is true or false, not {text!r}")
        if parts.username is not None:
            problems.append("storage: credentials do not belong into the address")
        if not parts.hostname:
            problems.append(f"storage: {scheme}:// names no bucket; {scheme}://bucket/prefix does")
        if problems:
            raise ConfigError(*problems)
        bucket = parts.netloc.rpartition("@")[2]
        return kind(bucket, key_prefix=unquote(parts.path).strip("/"), clock=clock, **options)

    return make


def _strangers(form: str, parts: SplitResult, known: Mapping[str, Any]) -> list[str]:
    """The options of an address that there are none of."""
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    problems = [
        f"storage: {form} has no option {name!r}{did_you_mean(name, known)}"
        for name in dict.fromkeys(names)
        if name not in known
    ]
    problems += [f"storage: option {name!r} is given twice" for name in known if names.count(name) > 1]
    if parts.fragment:
        problems.append(f"storage: {form} takes no fragment (#…)")
    return problems


def _flag(text: str) -> bool:
    return _FLAGS[text.lower()]


def _without_password(address: str) -> str:
    """An address without what may be a password in it."""
    before, at, after = address.rpartition("@")
    return f"…@{after}" if at else before + after


_SCHEMES: dict[str, Callable[[SplitResult, Clock | None], Storage]] = {
    "file": _local,
    "memory": _memory,
    "s3": _bucket(
        "s3",
        S3Storage,
        {
            "region": str,
            "endpoint": str,
            "path_style": _flag,
            "public_url": str,
            "presign": str,
            "allow_http": _flag,
        },
    ),
    "gs": _bucket("gs", GCSStorage, {"public_url": str}),
    "az": _bucket(
        "az", AzureStorage, {"account": str, "endpoint": str, "public_url": str, "allow_http": _flag}
    ),
}
