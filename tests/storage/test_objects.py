"""Files in object stores: native metadata, parts that are aborted, signatures, and stores that fail."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from maniflex.errors import ConfigError, FileExists, FileNotFound, StorageError, Unavailable
from maniflex.storage import AzureStorage, FileMeta, GCSStorage, S3Storage, Storage
from maniflex.storage.port import stat_file
from maniflex.testing import FakeClock
from tests.kit.object_stores import (
    ACCESS_KEY,
    ACCOUNT,
    ACCOUNT_KEY,
    SECRET_KEY,
    azure_storage,
    new_bucket,
    s3_client,
    s3_storage,
)
from tests.kit.waiting import PATIENCE

HOUR = timedelta(hours=1)
SOON = timedelta(seconds=0.5)
MB = 1024 * 1024
QUICK: dict[str, Any] = {"connect_timeout": SOON, "silence_timeout": SOON, "answer_timeout": SOON}


async def some(data: bytes = b"data", times: int = 1) -> AsyncIterator[bytes]:
    for _ in range(times):
        yield data


async def put(storage: Storage, key: str, data: bytes = b"data", **known: Any) -> FileMeta:
    return await storage.store(key, some(data), FileMeta(**known))


# -- what is in the bucket


async def test_type_disposition_and_name_are_native_metadata(s3_endpoint: str) -> None:
    bucket = new_bucket(s3_endpoint)
    storage = s3_storage(s3_endpoint, bucket, key_prefix="/team/files/")
    await put(storage, "a/b.html", filename="Grüße.html", content_type="text/html")
    await storage.store("c.png", some(bytes(MB), 6), FileMeta("c.png", "image/png"))

    page = s3_client(s3_endpoint).head_object(Bucket=bucket, Key="team/files/a/b.html")
    image = s3_client(s3_endpoint).head_object(Bucket=bucket, Key="team/files/c.png")

    assert page["ContentType"] == "text/html"
    assert page["ContentDisposition"].startswith("attachment; filename=")
    assert page["Metadata"]["filename"] == "Gr%C3%BC%C3%9Fe.html"
    assert (image["ContentType"], image["ContentDisposition"]) == ("image/png", 'inline; filename="c.png"')


async def test_the_prefix_is_never_seen(s3_endpoint: str) -> None:
    bucket = new_bucket(s3_endpoint)
    inner = s3_storage(s3_endpoint, bucket, key_prefix="one")
    await put(inner, "key")
    await put(s3_storage(s3_endpoint, bucket, key_prefix="onerous"), "other")

    assert [key async for key in inner.list_keys()] == ["key"]
    assert not await s3_storage(s3_endpoint, bucket).exists("key")
    assert await s3_storage(s3_endpoint, bucket).exists("one/key")


async def test_a_content_type_that_is_no_header_is_not_sent_as_one(s3_endpoint: str) -> None:
    storage = s3_storage(s3_endpoint)
    for number, content_type in enumerate(("a/b\r\nX-Evil: 1", "tëxt/plain", "")):
        await put(storage, f"{number}", content_type=content_type)
        assert (await storage.stat(f"{number}")).content_type == "application/octet-stream"


# -- uploads in parts


class Source:
    """Six megabytes, then a pause or an error."""

    def __init__(self, *, fails: bool) -> None:
        self.reached = asyncio.Event()
        self._fails = fails

    async def chunks(self) -> AsyncIterator[bytes]:
        for _ in range(12):
            yield bytes(MB)
        self.reached.set()
        if self._fails:
            raise KeyError("gone")
        await asyncio.Event().wait()


@pytest.mark.parametrize("fails", [True, False], ids=["failed", "cancelled"])
async def test_the_parts_of_an_upload_that_did_not_end_well_are_aborted(
    s3_endpoint: str, fails: bool
) -> None:
    bucket = new_bucket(s3_endpoint)
    source = Source(fails=fails)
    storing = asyncio.create_task(s3_storage(s3_endpoint, bucket).store("file", source.chunks(), FileMeta()))
    await source.reached.wait()
    if not fails:
        storing.cancel()
    done, _ = await asyncio.wait({storing}, timeout=PATIENCE)

    assert done
    assert storing.cancelled() or isinstance(storing.exception(), KeyError)
    assert "Uploads" not in s3_client(s3_endpoint).list_multipart_uploads(Bucket=bucket)
    assert "Contents" not in s3_client(s3_endpoint).list_objects_v2(Bucket=bucket)


async def test_a_file_whose_answer_was_lost_is_removed_and_no_other(s3_endpoint: str) -> None:
    bucket = new_bucket(s3_endpoint)
    direct = s3_storage(s3_endpoint, bucket)
    await put(direct, "before")
    async with relay(s3_endpoint) as (endpoint, gate):
        storage = s3_storage(endpoint, bucket, answer_timeout=timedelta(seconds=1))
        for key in ("new", "before"):
            gate.lose_next_answer = True
            with pytest.raises(Unavailable):
                await put(storage, key)
            assert not gate.lose_next_answer

    assert not await direct.exists("new")
    assert await direct.exists("before")


async def test_a_file_whose_connection_broke_after_it_was_stored_is_stored(s3_endpoint: str) -> None:
    async with relay(s3_endpoint) as (endpoint, gate):
        storage = s3_storage(endpoint, new_bucket(s3_endpoint))
        gate.lose_next_answer = gate.breaks_off = True
        stored = await put(storage, "new", filename="first")
        assert not gate.lose_next_answer
        assert (await storage.stat("new")).etag == stored.etag
        gate.lose_next_answer = True
        with pytest.raises(FileExists):
            await put(storage, "new", filename="second")
        assert (await storage.stat("new")).filename == "first"


# -- stores that fail


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """It takes connections and never says a word."""

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            pass
        writer.close()

    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"


class Gate:
    """Which answers of a relay are held back: all, or all on the next connection that has one."""

    hold_answers = False
    lose_next_answer = False
    breaks_off = False  # a connection whose answer was lost; else it stays open


@asynccontextmanager
async def relay(endpoint: str) -> AsyncIterator[tuple[str, Gate]]:
    """A way to a server on which answers can be held back."""
    gate = Gate()
    target = urlsplit(endpoint)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        lost = False
        try:
            while data := await reader.read(65536):
                if answers and gate.lose_next_answer:
                    gate.lose_next_answer, lost = False, True
                if lost or (answers and gate.hold_answers):
                    continue
                writer.write(data)
                await writer.drain()
            if lost and not gate.breaks_off:
                await asyncio.Event().wait()
        except OSError:
            pass
        finally:
            writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, upstream_writer = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(
            pump(reader, upstream_writer, answers=False), pump(upstream, writer, answers=True)
        )

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", gate
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if "connect" in repr(task.get_coro()):
                task.cancel()


def silent_storages(endpoint: str) -> Iterator[Storage]:
    yield s3_storage(endpoint, "bucket", **QUICK)
    yield AzureStorage("c", account=ACCOUNT, account_key=ACCOUNT_KEY, endpoint=endpoint, **QUICK)


async def test_a_store_that_never_answers_is_unavailable_in_time() -> None:
    async with silent_server() as endpoint:
        for storage in silent_storages(endpoint):
            calls = (
                storage.store("a", some(), FileMeta()),
                storage.store("a", some(bytes(MB), 12), FileMeta()),
                storage.open("a"),
                storage.delete("a"),
                storage.exists("a"),
                stat_file(storage, "a"),
            )
            for call in calls:
                with timed(2.5), pytest.raises(Unavailable) as caught:
                    await call
                assert caught.value.retryable
                assert "://" in str(caught.value)
                assert "://" not in caught.value.message


@contextmanager
def timed(limit: float) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    start = loop.time()
    yield
    assert loop.time() - start < limit


async def test_a_store_that_falls_silent_in_the_middle_is_unavailable(s3_endpoint: str) -> None:
    bucket = new_bucket(s3_endpoint)
    await s3_storage(s3_endpoint, bucket).store("file", some(bytes(MB), 8), FileMeta())
    async with relay(s3_endpoint) as (endpoint, gate):
        storage = s3_storage(endpoint, bucket, **QUICK)
        async with await storage.open("file") as reader:
            await anext(aiter(reader))
            gate.hold_answers = True
            with timed(5), pytest.raises(Unavailable):
                await reader.read()


async def test_a_store_that_is_away_is_unavailable_and_back_without_a_restart(s3_endpoint: str) -> None:
    async with silent_server() as endpoint:
        pass
    with pytest.raises(Unavailable):
        await put(s3_storage(endpoint, "bucket", **QUICK), "a")

    bucket = new_bucket(s3_endpoint)
    async with relay(s3_endpoint) as (endpoint, gate):
        storage = s3_storage(endpoint, bucket, **QUICK)
        gate.hold_answers = True
        with pytest.raises(Unavailable):
            await storage.exists("a")
        gate.hold_answers = False
        assert not await storage.exists("a")


async def test_a_missing_bucket_is_our_mistake(s3_endpoint: str) -> None:
    for times in (1, 12):
        with pytest.raises(StorageError, match="s3://no-such-bucket"):
            await s3_storage(s3_endpoint, "no-such-bucket").store("a", some(bytes(MB), times), FileMeta())


async def test_wrong_credentials_are_our_mistake_and_not_shown(azure_endpoint: str) -> None:
    good = azure_storage(azure_endpoint)
    container = repr(good).split("'")[1].removeprefix("az://")
    secret = base64.b64encode(b"the wrong key of this account!").decode()
    bad = AzureStorage(container, account=ACCOUNT, account_key=secret, endpoint=azure_endpoint)
    for call in (put(bad, "a"), bad.stat("a"), bad.delete("a")):
        with pytest.raises(StorageError) as caught:
            await call
        assert caught.value.status == 500
        assert secret not in str(caught.value) + repr(bad)
        assert "az://" not in caught.value.message


# -- signatures


async def test_a_signed_url_opens_a_file_and_a_changed_one_does_not(azure_endpoint: str) -> None:
    storage = azure_storage(azure_endpoint, key_prefix="in/here")
    await put(storage, "a/Grüße 1+1%.txt", b"hello", filename="Grüße.txt", content_type="text/plain")
    await put(storage, "b", b"other")

    url = await storage.url("a/Grüße 1+1%.txt", ttl=HOUR)
    async with httpx.AsyncClient() as http:
        answer = await http.get(url)
        assert (answer.status_code, answer.content) == (200, b"hello")
        assert answer.headers["content-type"] == "text/plain"
        assert answer.headers["content-disposition"].startswith("inline; filename=")
        signature = parse_qs(urlsplit(url).query)["sig"][0]
        refused = [
            await http.get(url.partition("?")[0]),
            await http.get(url.replace("/a/", "/c/")),
            await http.get(url.replace("/in/here/", "/in/")),
            await http.get(httpx.URL(url).copy_merge_params({"sig": "A" + signature[1:]})),
            await http.get(httpx.URL(url).copy_merge_params({"se": "2099-01-01T00:00:00Z"})),
            await http.put(url, content=b"mine", headers={"x-ms-blob-type": "BlockBlob"}),
        ]
    assert [answer.status_code for answer in refused] == [403] * 6


async def test_many_urls_are_signed_in_one_call(azure_endpoint: str) -> None:
    storage = azure_storage(azure_endpoint)
    keys = [f"file{number}" for number in range(50)]
    for key in keys[:3]:
        await put(storage, key, key.encode())
    urls = await storage.urls(keys, ttl=HOUR)
    async with httpx.AsyncClient() as http:
        assert [(await http.get(url)).text for url in urls[:3]] == keys[:3]
    assert len(set(urls)) == 50


async def test_a_client_uploads_by_itself_and_only_where_it_may(azure_endpoint: str) -> None:
    storage = azure_storage(azure_endpoint)
    upload = await storage.presign_upload(
        "a/b.txt", ttl=HOUR, max_size=10, content_type="text/plain", filename="b.txt"
    )
    async with httpx.AsyncClient() as http:
        elsewhere = upload.url.replace("/a/b.txt", "/a/c.txt")
        assert (await http.put(elsewhere, content=b"1", headers=upload.headers)).status_code == 403
        assert (
            await http.request(upload.method, upload.url, content=b"hello", headers=upload.headers)
        ).is_success
    known = await storage.stat("a/b.txt")
    assert (known.size, known.content_type) == (5, "text/plain")


async def test_lasting_urls_are_the_public_ones_or_the_longest(s3_endpoint: str) -> None:
    public = s3_storage(s3_endpoint, "bucket", key_prefix="p", public_url="https://cdn.example.com/x/")
    assert await public.url("a b", ttl=None) == "https://cdn.example.com/x/p/a%20b"
    signed = s3_storage(s3_endpoint, "bucket")
    for ttl in (None, timedelta(days=30)):
        query = parse_qs(urlsplit(await signed.url("a", ttl=ttl)).query)
        assert query["X-Amz-Expires"] == ["604800"]


def test_google_signs_with_the_key_of_a_service_account() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "private_key": pem.decode(),
        "private_key_id": "1",
        "client_email": "files@example.iam.gserviceaccount.com",
    }
    storage = GCSStorage("bucket", key_prefix="in", service_account_key=json.dumps(account))
    url = asyncio.run(storage.url("a/b.txt", ttl=HOUR))
    assert "/bucket/in/a/b.txt?" in url
    assert "X-Goog-Signature=" in url


# -- forms for browsers


def policy_signature(fields: dict[str, str]) -> str:
    """The signature as AWS describes it, made here without botocore."""
    _, date, region, service, _ = fields["x-amz-credential"].split("/")
    key = f"AWS4{SECRET_KEY}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, fields["policy"].encode(), hashlib.sha256).hexdigest()


async def test_a_form_binds_key_type_and_size(s3_endpoint: str) -> None:
    storage = s3_storage(s3_endpoint, key_prefix="in", presign="post")
    upload = await storage.presign_upload(
        "a/b.txt", ttl=HOUR, max_size=10, content_type="text/plain", filename="b.txt"
    )
    fields = dict(upload.fields)
    policy = json.loads(base64.b64decode(fields["policy"]))

    assert upload.method == "POST"
    assert fields["x-amz-signature"] == policy_signature(fields)
    assert fields["x-amz-credential"].startswith(f"{ACCESS_KEY}/")
    assert ["content-length-range", 0, 10] in policy["conditions"]
    assert {"Content-Type": "text/plain"} in policy["conditions"]
    assert {"key": "in/a/b.txt"} in policy["conditions"]
    assert SECRET_KEY not in repr(upload) + repr(storage)
    async with httpx.AsyncClient() as http:
        answer = await http.post(upload.url, data=fields, files={"file": ("b.txt", b"hello")})
    assert answer.is_success
    known = await storage.stat("a/b.txt")
    assert (known.size, known.content_type) == (5, "text/plain")


async def test_a_presigned_put_names_what_the_client_sends(s3_endpoint: str) -> None:
    clock = FakeClock()
    storage = s3_storage(s3_endpoint, clock=clock)
    upload = await storage.presign_upload(
        "b.html", ttl=HOUR, max_size=10, content_type="text/html", filename="b.html"
    )
    assert upload.expires_at == clock.now() + HOUR
    assert upload.headers == {
        "Content-Type": "text/html",
        "Content-Disposition": 'attachment; filename="b.html"',
    }
    async with httpx.AsyncClient() as http:
        assert (await http.put(upload.url, content=b"hello", headers=upload.headers)).is_success
    assert (await storage.stat("b.html")).content_type == "text/html"
    with pytest.raises(FileNotFound):
        await storage.stat("c.html")


async def test_uploads_in_parts_that_were_left_are_aborted(s3_endpoint: str) -> None:
    began = datetime(2010, 11, 10, 20, 48, 33, tzinfo=UTC)  # moto says that of every upload
    bucket, clock = new_bucket(s3_endpoint), FakeClock(began)
    storage = s3_storage(s3_endpoint, bucket, key_prefix="app", clock=clock)
    other = s3_client(s3_endpoint)
    for key in ("app/left", "elsewhere/left"):
        upload = other.create_multipart_upload(Bucket=bucket, Key=key)
        part = {"Bucket": bucket, "Key": key, "UploadId": upload["UploadId"], "PartNumber": 1}
        other.upload_part(**part, Body=b"x" * 1000)

    assert await storage.remove_stale_temporaries(timedelta(days=1)) == 0  # it may still go on
    clock.advance(timedelta(days=2))
    assert await storage.remove_stale_temporaries(timedelta(days=1)) == 1

    left = other.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [upload["Key"] for upload in left] == ["elsewhere/left"]
    lost = s3_storage(s3_endpoint, new_bucket(s3_endpoint) + "-gone", clock=clock)
    assert await lost.remove_stale_temporaries(timedelta(days=1)) == 0  # it is no failure of a sweep


def test_the_hosts_of_buckets() -> None:
    def host(**options: Any) -> str:
        storage = S3Storage("bkt", access_key_id="a", secret_access_key="b", **options)
        url = urlsplit(asyncio.run(storage.url("k", ttl=HOUR)))
        return f"{url.netloc}{url.path}"

    assert host(region="eu-west-1") == "bkt.s3.eu-west-1.amazonaws.com/k"
    assert host(region="eu-west-1", path_style=True) == "s3.eu-west-1.amazonaws.com/bkt/k"
    assert host(endpoint="https://r2.example.com") == "bkt.r2.example.com/k"
    assert host(endpoint="https://r2.example.com", path_style=True) == "r2.example.com/bkt/k"
    assert host(endpoint="http://127.0.0.1:9000") == "127.0.0.1:9000/bkt/k"
    assert host(endpoint="http://localhost:9000") == "localhost:9000/bkt/k"


@pytest.mark.parametrize("presign", ["put", "post"])
async def test_credentials_may_come_from_a_function(s3_endpoint: str, presign: Any) -> None:
    calls: list[str] = []

    def credentials() -> dict[str, Any]:
        calls.append("credentials")
        return {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "expires_at": None}

    storage = S3Storage(
        new_bucket(s3_endpoint),
        region="us-east-1",
        endpoint=s3_endpoint,
        presign=presign,
        credential_provider=credentials,
        retry={"max_retries": 1},
        client_options={"user_agent": "albums/1.0"},
    )
    await storage.store("a", some(), FileMeta("a.txt", "text/plain"))
    assert calls
    upload = await storage.presign_upload("b", ttl=HOUR, max_size=9, content_type="text/plain", filename="b")
    assert ACCESS_KEY in f"{upload.url} {upload.fields}"


async def test_every_object_gets_the_acl(s3_endpoint: str) -> None:
    bucket = new_bucket(s3_endpoint)
    storage = s3_storage(s3_endpoint, bucket, acl="public-read", presign="post")
    await storage.store("a", some(), FileMeta("a.txt", "text/plain"))
    upload = await storage.presign_upload("b", ttl=HOUR, max_size=9, content_type="text/plain", filename="b")
    async with httpx.AsyncClient() as http:
        sent = await http.post(upload.url, data=dict(upload.fields), files={"file": b"b"})
    assert sent.status_code < 300, sent.text
    for key in ("a", "b"):
        grants = s3_client(s3_endpoint).get_object_acl(Bucket=bucket, Key=key)["Grants"]
        assert any(one["Grantee"].get("URI", "").endswith("AllUsers") for one in grants), key


def test_options_that_contradict_each_other_stop_the_start() -> None:
    for options, text in (
        ({"acl": "public_read", "presign": "post"}, "did you mean 'public-read'"),
        ({"acl": "private"}, "with acl, presign is 'post'"),
        ({"credential_provider": "me"}, "credential_provider is a function"),
        ({"credential_provider": dict, "access_key_id": "a", "secret_access_key": "b"}, "two sources"),
    ):
        wrong: Any = options
        with pytest.raises(ConfigError, match=text):
            S3Storage("bucket", **wrong)
