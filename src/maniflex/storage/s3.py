"""Files in S3 and what speaks its language: R2, MinIO, Spaces and others."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from maniflex._clock import Clock
from maniflex.errors import ConfigError
from maniflex.storage._endpoint import endpoint_problems, has_no_subdomains, is_http
from maniflex.storage._post_policy import PostPolicies, can_sign
from maniflex.storage.disposition import content_disposition
from maniflex.storage.object_store import ANSWER_TIMEOUT, CONNECT_TIMEOUT, SILENCE_TIMEOUT, ObjectStorage
from maniflex.storage.port import FileMeta, PresignedUpload

_WAYS = ("put", "post")
_LOOK_EVERY = timedelta(hours=1)


class S3Storage(ObjectStorage):
    """A bucket. Credentials are those given here, else those that obstore finds in the environment."""

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
        connect_timeout: timedelta = CONNECT_TIMEOUT,
        silence_timeout: timedelta = SILENCE_TIMEOUT,
        answer_timeout: timedelta = ANSWER_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        if problems := _problems(bucket, endpoint, presign, access_key_id, secret_access_key, allow_http):
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
        settings: dict[str, Any] = {
            "region": region,
            "endpoint": endpoint if endpoint is None or by_path else _of_bucket(endpoint, bucket),
            **credentials,
        }
        self._store = S3Store(
            bucket,
            virtual_hosted_style_request=not by_path,
            # One file at a time is deleted here, and not all who speak S3 know how to delete many.
            disable_bulk_delete=True,
            **{name: value for name, value in settings.items() if value is not None},
            **self._options(allow_http=is_http(endpoint)),
        )
        self._looked_at: datetime | None = None
        self._signs_forms = presign == "post"
        self._signer = (
            PostPolicies(
                bucket, region=region, endpoint=endpoint, path_style=by_path, credentials=credentials
            )
            if self._signs_forms or can_sign()
            else None
        )

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


def _of_bucket(endpoint: str, bucket: str) -> str:
    """The address under which a service serves one bucket as a host of its own."""
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(netloc=f"{bucket}.{parts.netloc}"))
