"""Files in Google Cloud Storage."""

from __future__ import annotations

from datetime import timedelta

from maniflex._callables import explain_class
from maniflex._clock import Clock
from maniflex.errors import ConfigError
from maniflex.storage.object_store import ANSWER_TIMEOUT, CONNECT_TIMEOUT, SILENCE_TIMEOUT, ObjectStorage


@explain_class
class GCSStorage(ObjectStorage):
    """A bucket. Credentials are those given here, else those that obstore finds in the environment."""

    def __init__(
        self,
        bucket: str,
        *,
        key_prefix: str = "",
        public_url: str | None = None,
        service_account_key: str | None = None,
        connect_timeout: timedelta = CONNECT_TIMEOUT,
        silence_timeout: timedelta = SILENCE_TIMEOUT,
        answer_timeout: timedelta = ANSWER_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        if not bucket:
            raise ConfigError("GCSStorage: the name of the bucket is empty")
        super().__init__(
            f"gs://{bucket}",
            key_prefix=key_prefix,
            public_url=public_url,
            connect_timeout=connect_timeout,
            silence_timeout=silence_timeout,
            answer_timeout=answer_timeout,
            clock=clock,
        )
        from obstore.store import GCSStore

        credentials = {} if service_account_key is None else {"service_account_key": service_account_key}
        self._store = GCSStore(bucket, **credentials, **self._options())  # type: ignore[arg-type]
