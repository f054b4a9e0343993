"""Files in S3 and what speaks its language: R2, MinIO, Spaces and others."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from maniflex._arguments import explain_class
from maniflex._clock import Clock
from maniflex._names import did_you_mean
from maniflex.errors import ConfigError
from maniflex.storage._endpoint import endpoint_problems, has_no_subdomains, is_http
from maniflex.storage._post_policy import PostPolicies, can_sign
from maniflex.storage.disposition import content_disposition
from maniflex.storage.object_store import ANSWER_TIMEOUT, CONNECT_TIMEOUT, SILENCE_TIMEOUT, ObjectStorage
from maniflex.storage.port import FileMeta, PresignedUpload

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
