"""Buckets and containers on the object stores that the tests run against, each test with a new one."""

from __future__ import annotations

import base64
import hashlib
import hmac
from email.utils import formatdate
from functools import cache
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from maniflex.storage import AzureStorage, S3Storage

ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
ACCESS_KEY, SECRET_KEY = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
_VERSION = "2023-11-03"


@cache
def s3_client(endpoint: str) -> Any:
    """A second opinion of what is in a bucket."""
    from botocore.session import Session

    return Session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )


def new_bucket(endpoint: str) -> str:
    bucket = f"bucket-{uuid4().hex}"
    assert httpx.put(f"{endpoint}/{bucket}").status_code == 200  # moto asks nobody who they are
    return bucket


def s3_storage(endpoint: str, bucket: str | None = None, **options: Any) -> S3Storage:
    return S3Storage(
        bucket or new_bucket(endpoint),
        region="us-east-1",
        endpoint=endpoint,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        **options,
    )


def azure_storage(endpoint: str, **options: Any) -> AzureStorage:
    container = f"container-{uuid4().hex}"
    _create_container(endpoint, container)
    return AzureStorage(container, account=ACCOUNT, account_key=ACCOUNT_KEY, endpoint=endpoint, **options)


def _create_container(endpoint: str, container: str) -> None:
    date = formatdate(usegmt=True)
    path = f"{urlsplit(endpoint).path}/{container}"
    # obstore makes no containers, so this one request is signed here, as Azure's "Shared Key" has it.
    text = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{_VERSION}\n/{ACCOUNT}{path}\nrestype:container"
    key = base64.b64decode(ACCOUNT_KEY)
    signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
    headers = {
        "x-ms-date": date,
        "x-ms-version": _VERSION,
        "Authorization": f"SharedKey {ACCOUNT}:{signature}",
    }
    answer = httpx.put(f"{endpoint}/{container}?restype=container", headers=headers)
    assert answer.status_code == 201, answer.text
