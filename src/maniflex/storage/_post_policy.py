"""Forms that a browser may send to S3: a policy binds key, type and size, and botocore signs it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from maniflex.errors import ConfigError, StorageError

MOST_OF_ONE_POST = 5 * 1024**3  # what S3 takes in one request


class PostPolicies:
    """Signs forms for one bucket; nothing is sent to anybody."""

    def __init__(
        self,
        bucket: str,
        *,
        region: str | None,
        endpoint: str | None,
        path_style: bool,
        credentials: Mapping[str, str | None],
    ) -> None:
        if find_spec("botocore") is None:
            raise ConfigError(
                "S3Storage: presign='post' needs botocore: pip install \"maniflex[storage-post]\""
            )
        self._bucket = bucket
        self._region = region
        self._endpoint = endpoint
        self._addressing = "path" if path_style else "virtual"
        self._credentials = credentials

    async def sign(
        self, path: str, headers: Mapping[str, str], *, ttl: timedelta, max_size: int | None
    ) -> tuple[str, dict[str, str]]:
        """Where the form goes, and its fields; the part `file` comes after them."""
        conditions: list[Any] = [{name: value} for name, value in headers.items()]
        conditions.append(["content-length-range", 0, MOST_OF_ONE_POST if max_size is None else max_size])

        def sign() -> dict[str, Any]:  # the first time, botocore reads its data; credentials may be fetched
            answer: dict[str, Any] = self._client.generate_presigned_post(
                self._bucket,
                path,
                Fields=dict(headers),
                Conditions=conditions,
                ExpiresIn=int(ttl.total_seconds()),
            )
            return answer

        from botocore.exceptions import BotoCoreError

        try:
            form = await asyncio.to_thread(sign)
        except BotoCoreError as error:
            raise StorageError(f"botocore cannot sign: {type(error).__name__}") from None
        return form["url"], form["fields"]

    @cached_property
    def _client(self) -> Any:
        from botocore.config import Config
        from botocore.session import Session

        return Session().create_client(
            "s3",
            region_name=self._region or "us-east-1",
            endpoint_url=self._endpoint,
            aws_access_key_id=self._credentials["access_key_id"],
            aws_secret_access_key=self._credentials["secret_access_key"],
            aws_session_token=self._credentials["session_token"],
            config=Config(signature_version="s3v4", s3={"addressing_style": self._addressing}),
        )
