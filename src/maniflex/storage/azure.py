"""Files in Azure Blob Storage."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from maniflex._callables import explain_class
from maniflex._clock import Clock
from maniflex.errors import ConfigError
from maniflex.storage.object_store import (
    ANSWER_TIMEOUT,
    CONNECT_TIMEOUT,
    SILENCE_TIMEOUT,
    ObjectStorage,
    endpoint_problems,
    is_http,
)
from maniflex.storage.port import FileMeta

# obstore signs a name as it stands in the URL, and Azure checks the name itself: where the two differ, the
# signature is wrong. So no name has a character that a URL escapes.
_ESCAPED_IN_URLS = re.compile(r"[^A-Za-z0-9/._~!$&'()*+,;:@-]")
_ESCAPE = re.compile(r"(?:=[0-9A-F]{2})+")


@explain_class
class AzureStorage(ObjectStorage):
    """A container. Credentials are those given here, else those that obstore finds in the environment."""

    def __init__(
        self,
        container: str,
        *,
        account: str | None = None,
        account_key: str | None = None,
        endpoint: str | None = None,
        key_prefix: str = "",
        public_url: str | None = None,
        allow_http: bool = False,
        connect_timeout: timedelta = CONNECT_TIMEOUT,
        silence_timeout: timedelta = SILENCE_TIMEOUT,
        answer_timeout: timedelta = ANSWER_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        problems = endpoint_problems("AzureStorage", endpoint, allow_http=allow_http)
        if not container:
            problems.append("AzureStorage: the name of the container is empty")
        if problems:
            raise ConfigError(*problems)
        super().__init__(
            f"az://{container}",
            key_prefix=key_prefix,
            public_url=public_url,
            connect_timeout=connect_timeout,
            silence_timeout=silence_timeout,
            answer_timeout=answer_timeout,
            clock=clock,
        )
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore

        settings: dict[str, Any] = {"account_name": account, "account_key": account_key, "endpoint": endpoint}
        try:
            self._store = AzureStore(
                container,
                **{name: value for name, value in settings.items() if value is not None},
                **self._options(allow_http=is_http(endpoint)),
            )
        except BaseError as error:
            raise ConfigError(f"AzureStorage: {str(error).partition(chr(10))[0]}") from None

    def _upload_headers(self, meta: FileMeta) -> dict[str, str]:
        headers = super()._upload_headers(meta)
        disposition = headers.pop("Content-Disposition")
        return {**headers, "x-ms-blob-type": "BlockBlob", "x-ms-blob-content-disposition": disposition}

    def _name(self, path: str) -> str:
        return _ESCAPED_IN_URLS.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), path)

    def _name_read(self, name: str) -> str:
        return _ESCAPE.sub(
            lambda found: bytes.fromhex(found[0].replace("=", "")).decode("utf-8", "replace"), name
        )
