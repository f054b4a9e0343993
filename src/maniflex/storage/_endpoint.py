"""The address of a service that is not at its usual place."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_http(endpoint: str | None) -> bool:
    return endpoint is not None and endpoint.lower().startswith("http://")


def endpoint_problems(owner: str, endpoint: str | None, *, allow_http: bool) -> list[str]:
    """What is wrong with the address of a service."""
    if endpoint is None:
        return []
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        return [f"{owner}: endpoint is a URL such as https://minio.example.com:9000, without credentials"]
    if parts.scheme == "http" and not allow_http and not _is_loopback(parts.hostname):
        return [f"{owner}: endpoint has no TLS; on this machine that is fine, elsewhere say allow_http=True"]
    return []


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def has_no_subdomains(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        ip_address(host)
    except ValueError:
        return "." not in host
    return True
