"""Files in S3 and what speaks its language: R2, MinIO, Spaces and others."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit, urlunsplit

from maniflex._callables import explain_class
from maniflex._clock import Clock
from maniflex._names import did_you_mean
from maniflex.errors import ConfigError, StorageError
from maniflex.storage.object_store import (
    ANSWER_TIMEOUT,
    CONNECT_TIMEOUT,
    SILENCE_TIMEOUT,
    ObjectStorage,
    endpoint_problems,
    has_no_subdomains,
    is_http,
)
from maniflex.storage.port import FileMeta, PresignedUpload
from maniflex.storage.signer import content_disposition

_WAYS = ("put", "post")
_ACLS = (
    "private",
    "public-read",
    "public-read-write",
    "authenticated-read",
    "aws-exec-read",
    "bucket-owner-read",
    "bucket-owner-full-control",
)
_LOOK_EVERY = timedelta(hours=1)


@explain_class
class S3Storage(ObjectStorage):
    """A bucket. Credentials are those given here, else those that obstore finds in the environment.

    `credential_provider`, `retry` and `client_options` are obstore's own. `acl` is one of S3's, for every
    object that is stored.
    """

    def __init__(
        self,
        bucket: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        path_style: bool = False,
        key_prefix: str = "",
        public_url: str | None = None,
        presign: Literal["put", "post"] = "put",
        allow_http: bool = False,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        credential_provider: Callable[[], Any] | None = None,
        acl: str | None = None,
        retry: Mapping[str, Any] | None = None,
        client_options: Mapping[str, Any] | None = None,
        connect_timeout: timedelta = CONNECT_TIMEOUT,
        silence_timeout: timedelta = SILENCE_TIMEOUT,
        answer_timeout: timedelta = ANSWER_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        problems = _problems(bucket, endpoint, presign, access_key_id, secret_access_key, allow_http)
        problems += _option_problems(credential_provider, access_key_id, acl, presign)
        if problems:
            raise ConfigError(*problems)
        super().__init__(
            f"s3://{bucket}",
            key_prefix=key_prefix,
            public_url=public_url,
            connect_timeout=connect_timeout,
            silence_timeout=silence_timeout,
            answer_timeout=answer_timeout,
            clock=clock,
        )
        from obstore.store import S3Store

        by_path = path_style or (endpoint is not None and has_no_subdomains(endpoint))
        credentials = {
            "access_key_id": access_key_id,
            "secret_access_key": secret_access_key,
            "session_token": session_token,
        }
        address = endpoint if endpoint is None or by_path else _of_bucket(endpoint, bucket)
        settings = {"region": region, "endpoint": address, **credentials}
        options = self._options(allow_http=is_http(endpoint))
        options["client_options"] |= client_options or {}
        options["retry_config"] |= retry or {}
        # One file at a time is deleted here, and not all who speak S3 know how to delete many.
        self._store = S3Store(
            bucket,
            virtual_hosted_style_request=not by_path,
            disable_bulk_delete=True,
            **_drop_unset({**settings, "credential_provider": credential_provider}),
            **options,
        )
        self._acl = acl
        self._looked_at: datetime | None = None
        self._signs_forms = self.pins_upload_size = presign == "post"
        self._signer = (
            PostPolicies(
                bucket,
                region=region,
                endpoint=endpoint,
                path_style=by_path,
                credentials=credentials,
                provider=credential_provider,
                acl=acl,
            )
            if self._signs_forms or can_sign()
            else None
        )

    async def store(self, key: str, chunks: AsyncIterable[bytes], meta: FileMeta) -> FileMeta:
        stored_meta = await super().store(key, chunks, meta)
        if self._acl is not None and self._signer is not None:
            # A request of its own: obstore signs no header for it, and S3 takes none that is not signed.
            async with self._errors.translate("setting the ACL", within=self._answer):
                await self._signer.set_acl(self._path(key))
        return stored_meta

    async def url(
        self, key: str, *, ttl: timedelta | None, download: bool = False, filename: str | None = None
    ) -> str:
        """With `download` one that saves the file, where botocore is installed; `filename` goes with it."""
        if download and (url := await self.download_url(key, ttl=self._within_reach(ttl), filename=filename)):
            return url
        return await super().url(key, ttl=ttl)

    async def download_url(self, key: str, *, ttl: timedelta, filename: str | None = None) -> str | None:
        """A URL that says itself that the file is to be saved, whatever its type; None without botocore."""
        if self._signer is None:
            return None
        disposition = content_disposition(filename or key.rpartition("/")[2], inline=False)
        async with self._errors.translate("signing a URL", within=self._answer):
            return await self._signer.sign_download(self._path(key), disposition, self._within_reach(ttl))

    async def remove_stale_temporaries(self, age: timedelta) -> int:
        """Abort uploads in parts that are older and were never finished, at most once an hour; how many."""
        now = self._clock.now()
        if self._signer is None or (self._looked_at is not None and now - self._looked_at < _LOOK_EVERY):
            return 0
        self._looked_at = now
        return await self._signer.abort_uploads(self._prefix, now - age)

    async def presign_upload(
        self, key: str, *, ttl: timedelta, max_size: int | None, content_type: str, filename: str
    ) -> PresignedUpload:
        """With `presign="post"` a form whose policy binds size and type as well."""
        if self._signer is None or not self._signs_forms:
            return await super().presign_upload(
                key, ttl=ttl, max_size=max_size, content_type=content_type, filename=filename
            )
        path, ttl = self._path(key), self._within_reach(ttl)
        expires_at = self._clock.now() + ttl
        headers = self._upload_headers(FileMeta(filename, content_type))
        async with self._errors.translate("signing an upload", within=self._answer):
            url, fields = await self._signer.sign(path, headers, ttl=ttl, max_size=max_size)
        return PresignedUpload(url=url, method="POST", expires_at=expires_at, fields=fields)


def _problems(
    bucket: str,
    endpoint: str | None,
    presign: str,
    access_key_id: str | None,
    secret_access_key: str | None,
    allow_http: bool,
) -> list[str]:
    problems = endpoint_problems("S3Storage", endpoint, allow_http=allow_http)
    if not bucket:
        problems.append("S3Storage: the name of the bucket is empty")
    if presign not in _WAYS:
        problems.append(f"S3Storage: presign is 'put' or 'post', not {presign!r}")
    if (access_key_id is None) != (secret_access_key is None):
        problems.append("S3Storage: access_key_id and secret_access_key are given both or neither")
    return problems


def _drop_unset(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without those that are None."""
    return {name: value for name, value in settings.items() if value is not None}


def _option_problems(
    provider: Any, access_key_id: str | None, acl: str | None, presign: str
) -> Iterator[str]:
    if provider is not None and not callable(provider):
        yield "S3Storage: credential_provider is a function, which gives credentials as obstore takes them"
    if provider is not None and access_key_id is not None:
        yield "S3Storage: credential_provider and access_key_id are two sources of credentials; give one"
    if acl is not None and acl not in _ACLS:
        yield f"S3Storage: acl {acl!r} is none of {', '.join(_ACLS)}{did_you_mean(acl, _ACLS)}"
    if acl is not None and not can_sign():
        yield 'S3Storage: acl needs botocore: pip install "maniflex[storage-post]"'
    if acl is not None and presign == "put":
        yield "S3Storage: with acl, presign is 'post': a URL for PUT cannot say who may read the object"


def _of_bucket(endpoint: str, bucket: str) -> str:
    """The address under which a service serves one bucket as a host of its own."""
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(netloc=f"{bucket}.{parts.netloc}"))


# What only botocore does for S3: signs forms whose policy binds key, type and size, signs URLs of
# downloads, and finds uploads in parts that nobody finished.


T = TypeVar("T")
MOST_OF_ONE_POST = 5 * 1024**3  # what S3 takes in one request


def can_sign() -> bool:
    """Whether botocore is installed."""
    return find_spec("botocore") is not None


class PostPolicies:
    """Signs for one bucket, and aborts uploads that were left."""

    def __init__(
        self,
        bucket: str,
        *,
        region: str | None,
        endpoint: str | None,
        path_style: bool,
        credentials: Mapping[str, str | None],
        provider: Callable[[], Any] | None = None,
        acl: str | None = None,
    ) -> None:
        if not can_sign():
            raise ConfigError(
                "S3Storage: presign='post' needs botocore: pip install \"maniflex[storage-post]\""
            )
        self._bucket = bucket
        self._region = region
        self._endpoint = endpoint
        self._addressing = "path" if path_style else "virtual"
        self._credentials = credentials
        self._provider = provider
        self._acl = acl
        self._clients: dict[tuple[str | None, ...], Any] = {}  # of the newest credentials

    async def sign(
        self, path: str, headers: Mapping[str, str], *, ttl: timedelta, max_size: int | None
    ) -> tuple[str, dict[str, str]]:
        """Where the form goes, and its fields; the part `file` comes after them."""
        headers = {**headers, **({} if self._acl is None else {"acl": self._acl})}
        conditions: list[Any] = [{name: value} for name, value in headers.items()]
        conditions.append(["content-length-range", 0, MOST_OF_ONE_POST if max_size is None else max_size])

        credentials = await self._find_credentials()

        def sign() -> dict[str, Any]:  # the first time, botocore reads its data; credentials may be fetched
            answer: dict[str, Any] = self._client(credentials).generate_presigned_post(
                self._bucket,
                path,
                Fields=dict(headers),
                Conditions=conditions,
                ExpiresIn=int(ttl.total_seconds()),
            )
            return answer

        form = await _in_thread(sign)
        return form["url"], form["fields"]

    async def sign_download(self, path: str, disposition: str, ttl: timedelta) -> str:
        """A URL whose answer has this `Content-Disposition`."""
        parameters = {"Bucket": self._bucket, "Key": path, "ResponseContentDisposition": disposition}

        credentials = await self._find_credentials()

        def sign() -> str:
            return str(
                self._client(credentials).generate_presigned_url(
                    "get_object", Params=parameters, ExpiresIn=int(ttl.total_seconds())
                )
            )

        return await _in_thread(sign)

    async def set_acl(self, path: str) -> None:
        """Let an object be read by whom the ACL says."""
        from botocore.exceptions import ClientError

        credentials = await self._find_credentials()

        def set_acl() -> None:
            self._client(credentials).put_object_acl(Bucket=self._bucket, Key=path, ACL=self._acl)

        try:
            await _in_thread(set_acl)
        except ClientError as error:
            raise StorageError(f"the ACL was refused: {error.response['Error'].get('Code')}") from None

    async def abort_uploads(self, prefix: str, before: datetime) -> int:
        """Abort uploads in parts that began before then and were never finished; how many there were.

        A store that refuses, or has no such call, is left as it is: no file is missing for it.
        """

        credentials = await self._find_credentials()

        def abort() -> int:
            client, count = self._client(credentials), 0
            pages = client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=prefix
            )
            for upload in (upload for page in pages for upload in page.get("Uploads", ())):
                if upload["Initiated"] < before:
                    names = {"Key": upload["Key"], "UploadId": upload["UploadId"]}
                    client.abort_multipart_upload(Bucket=self._bucket, **names)
                    count += 1
            return count

        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return await asyncio.to_thread(abort)
        except (BotoCoreError, ClientError):
            return 0

    async def _find_credentials(self) -> tuple[str | None, str | None, str | None]:
        """Key, secret and token: as given, as the provider says now, or none for botocore to find its own."""
        if self._provider is None:
            own = self._credentials
            return own["access_key_id"], own["secret_access_key"], own["session_token"]
        outcome = self._provider()
        fresh = await outcome if inspect.isawaitable(outcome) else outcome
        return fresh["access_key_id"], fresh["secret_access_key"], fresh.get("token")

    def _client(self, credentials: tuple[str | None, str | None, str | None]) -> Any:
        if credentials not in self._clients:
            self._clients = {credentials: self._make_client(*credentials)}
        return self._clients[credentials]

    def _make_client(self, key_id: str | None, secret: str | None, token: str | None) -> Any:
        from botocore.config import Config
        from botocore.session import Session

        return Session().create_client(
            "s3",
            region_name=self._region or "us-east-1",
            endpoint_url=self._endpoint,
            aws_access_key_id=key_id,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=Config(
                signature_version="s3v4",
                s3={"addressing_style": self._addressing},
                connect_timeout=5,
                read_timeout=30,
                retries={"max_attempts": 1},
            ),
        )


async def _in_thread(sign: Callable[[], T]) -> T:
    from botocore.exceptions import BotoCoreError

    try:
        return await asyncio.to_thread(sign)
    except BotoCoreError as error:
        raise StorageError(f"botocore cannot sign: {type(error).__name__}") from None
