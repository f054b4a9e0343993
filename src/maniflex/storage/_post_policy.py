"""What only botocore does for S3: signs forms whose policy binds key, type and size, signs URLs of downloads,
and finds uploads in parts that nobody finished."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import Any, TypeVar

from maniflex.errors import ConfigError, StorageError

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
