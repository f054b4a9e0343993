"""The keys of new files, headers that name them, and URLs that open them."""

from __future__ import annotations

import re
from datetime import timedelta
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maniflex.errors import ConfigError, PresignUnsupported, StorageError
from maniflex.storage import LocalStorage, MemoryStorage, UrlSigner, key_problem, new_key
from maniflex.storage.signer import content_disposition, is_inline
from maniflex.testing import FakeClock

HOUR = timedelta(hours=1)
KEY = "uploads/1/Grüße 100%.txt"


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        ("photo.png", "photo.png"),
        ("Grüße an alle.txt", "Gr__e_an_alle.txt"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ("C:\\fakepath\\a.doc", "C__fakepath_a.doc"),
        (".bashrc", "bashrc"),
        ("...", "file"),
        ("", "file"),
        ("a" * 500, "a" * 120),
        ("x.meta.json", "x_meta_json"),
        ("x.META.JSON", "x_meta_json"),
        ("a\r\nb", "a__b"),
    ],
)
def test_a_name_is_cut_to_what_is_safe_everywhere(filename: str, name: str) -> None:
    found = re.fullmatch(r"uploads/([0-9a-f-]{36})/(.*)", new_key(filename))
    assert found is not None
    assert found[2] == name
    assert found[1][14] == "4"  # random, so that no key tells another


@given(st.text())
def test_every_name_makes_a_good_key(filename: str) -> None:
    assert key_problem(new_key(filename)) is None


# -- names in headers


@pytest.mark.parametrize(
    ("filename", "value"),
    [
        ("a.txt", 'attachment; filename="a.txt"'),
        ("", "attachment"),
        ("\r\n", "attachment"),
        ("Grüße.txt", "attachment; filename=\"Gr__e.txt\"; filename*=UTF-8''Gr%C3%BC%C3%9Fe.txt"),
        (
            'a";x="\r\nSet-Cookie: b.txt',
            'attachment; filename="a_;x=_Set-Cookie: b.txt";'
            " filename*=UTF-8''a%22%3Bx%3D%22Set-Cookie%3A%20b.txt",
        ),
    ],
)
def test_a_name_in_a_header(filename: str, value: str) -> None:
    assert content_disposition(filename, inline=False) == value


@given(st.text())
def test_no_name_ends_a_header_or_its_value(filename: str) -> None:
    value = content_disposition(filename, inline=True)
    assert value.isascii()
    assert value.isprintable()
    found = re.fullmatch(
        r"inline(; filename=\"[^\"\\]*\"(; filename\*=UTF-8''[A-Za-z0-9!#$&+.^_`|~%-]*)?)?", value
    )
    assert found is not None


def test_only_harmless_types_are_shown() -> None:
    assert is_inline("IMAGE/PNG; x=1")
    for content_type in (
        "text/html",
        "image/svg+xml",
        "application/xml",
        "application/octet-stream",
        "",
        "text/plainx",
    ):
        assert not is_inline(content_type)


# -- URLs


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def signer(clock: FakeClock) -> UrlSigner:
    return UrlSigner("https://example.com/api/files/", b"0123456789abcdef", clock=clock)


def split_url(url: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(url)
    path = unquote(parts.path).removeprefix("/api/files/")
    return path, {name: values[0] for name, values in parse_qs(parts.query).items()}


def test_a_signed_url_opens_its_file_until_it_expires(signer: UrlSigner, clock: FakeClock) -> None:
    key, query = split_url(signer.read_url(KEY, ttl=HOUR))
    assert key == KEY
    assert signer.check_read(KEY, query) is not None
    clock.advance(HOUR - timedelta(seconds=1))
    assert signer.check_read(KEY, query) is not None
    clock.advance(timedelta(seconds=1))
    assert signer.check_read(KEY, query) is None


def test_what_a_url_says_besides_is_signed_with_it(signer: UrlSigner) -> None:
    _, query = split_url(signer.read_url(KEY, ttl=HOUR, download=True, filename="Grüße\ud800.txt"))
    grant = signer.check_read(KEY, query)
    assert grant is not None
    assert (grant.download, grant.filename) == (True, "Grüße?.txt")
    for changed in ({"filename": "x.html"}, {"download": "0"}, {"expires": "99999999999"}, {"expires": "x"}):
        assert signer.check_read(KEY, {**query, **changed}) is None
    for left_out in query:
        assert signer.check_read(KEY, {name: query[name] for name in query if name != left_out}) is None


def test_every_changed_character_closes_the_file(signer: UrlSigner) -> None:
    _, query = split_url(signer.read_url(KEY, ttl=HOUR))
    signature = query["signature"]
    for place in range(len(signature)):
        other = "0" if signature[place] != "0" else "1"
        changed = signature[:place] + other + signature[place + 1 :]
        assert signer.check_read(KEY, {**query, "signature": changed}) is None
    for changed in ("", signature[:-1], signature + "0", "\ud800", "é" * 64, signature.upper()):
        assert signer.check_read(KEY, {**query, "signature": changed}) is None
    assert signer.check_read("uploads/2/other", query) is None
    assert UrlSigner("/api/files", b"another-secret-16").check_read(KEY, query) is None
    assert signer.check_read(KEY, {}) is None


def test_reading_and_uploading_are_different_things(signer: UrlSigner) -> None:
    _, reading = split_url(signer.read_url(KEY, ttl=HOUR))
    assert signer.check_upload(KEY, reading) is None
    upload = signer.upload(KEY, ttl=HOUR, max_size=10, content_type="text/plain", filename="a.txt")
    _, query = split_url(upload.url)
    assert signer.check_read(KEY, query) is None
    grant = signer.check_upload(KEY, query)
    assert grant is not None
    assert (grant.max_size, grant.content_type, grant.filename) == (10, "text/plain", "a.txt")
    for changed in ({"max": "11"}, {"type": "text/html"}, {"filename": "b"}):
        assert signer.check_upload(KEY, {**query, **changed}) is None
    without = {name: value for name, value in query.items() if name != "max"}
    assert signer.check_upload(KEY, without) is None


@pytest.mark.parametrize("size", [0, 1024])
def test_an_upload_without_a_limit_and_one_of_nothing(signer: UrlSigner, size: int) -> None:
    for most in (None, size):
        upload = signer.upload(KEY, ttl=HOUR, max_size=most, content_type="a/b", filename="a")
        grant = signer.check_upload(KEY, split_url(upload.url)[1])
        assert grant is not None
        assert grant.max_size == most


def test_a_short_secret_is_refused_and_no_secret_is_shown() -> None:
    with pytest.raises(ConfigError, match="files_signing_key"):
        UrlSigner("/files", b"short")
    assert "0123" not in repr(UrlSigner("/files", b"0123456789abcdef"))


async def test_a_storage_signs_with_what_the_server_gave_it(signer: UrlSigner) -> None:
    for storage in (MemoryStorage(), LocalStorage("nowhere")):
        with pytest.raises(StorageError):
            await storage.url(KEY, ttl=HOUR)
        with pytest.raises(PresignUnsupported):
            await storage.presign_upload(KEY, ttl=HOUR, max_size=1, content_type="a/b", filename="a")
        storage.bind(signer)
        key, query = split_url(await storage.url(KEY, ttl=HOUR, download=True))
        assert (key, signer.check_read(KEY, query) is not None) == (KEY, True)
        assert "?" not in await storage.url(KEY, ttl=None)
        upload = await storage.presign_upload(KEY, ttl=HOUR, max_size=1, content_type="a/b", filename="a")
        assert (upload.method, upload.headers) == ("PUT", {"Content-Type": "a/b"})
