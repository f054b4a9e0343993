"""Where a PostgreSQL server is and who we are there, read from a URL.

Read here and not by the driver, because its complaints quote parts of the URL, and a password
with an unescaped `@` would be one of them. Our messages name the mistake without quoting the URL.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from maniflex.errors import ConfigError

_DEFAULT_PORT = 5432

# libpq has them and cloud consoles print them; the driver would send them to the server as settings.
_LIBPQ_ONLY = frozenset(
    {
        "channel_binding",
        "connect_timeout",
        "fallback_application_name",
        "gssencmode",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "require_auth",
        "sslsni",
        "tcp_user_timeout",
    }
)


@dataclass(frozen=True, slots=True)
class Address:
    """One server (or a list of them, tried in order) and the login to use."""

    hosts: tuple[tuple[str, int], ...]
    user: str | None
    password: str | None = field(repr=False)
    database: str | None
    options: tuple[tuple[str, str], ...] = field(repr=False)
    is_pooler: bool = False

    @property
    def label(self) -> str:
        """`postgresql:database@host:port`, fit for logs."""
        hosts = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        host = ",".join(hosts) or dict(self.options).get("host", "localhost")
        return f"postgresql:{self.database_name}@{host}"

    @property
    def database_name(self) -> str:
        """The database, which is called like the user when nothing names it."""
        options = dict(self.options)
        return self.database or options.get("dbname") or options.get("database") or self.user or ""

    def each(self) -> tuple[Address, ...]:
        """One address for each host."""
        return tuple(replace(self, hosts=(host,)) for host in self.hosts) or (self,)

    def arguments(self) -> dict[str, Any]:
        """The arguments for the driver's `connect`; absent ones are left to PG* variables and defaults."""
        arguments: dict[str, Any] = {
            "dsn": f"postgresql:///?{urlencode(self.options)}" if self.options else None,
            "user": self.user,
            "password": self.password,
            "database": self.database,
        }
        if self.hosts:
            arguments["host"] = [host for host, _ in self.hosts]
            arguments["port"] = [port for _, port in self.hosts]
        return arguments


def parse_address(url: str) -> Address:
    """Read `postgresql://user:password@host:port/database?option=value`."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigError("the PostgreSQL URL cannot be read") from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigError("a PostgreSQL URL starts with postgresql://")
    flags = [value for name, value in options if name == "pgbouncer"]
    if any(value not in ("true", "false") for value in flags):
        raise ConfigError("pgbouncer in the PostgreSQL URL is true or false")
    login, _, where = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    return Address(
        hosts=tuple(_host(entry) for entry in where.split(",")) if where else (),
        user=unquote(user) or None,
        password=unquote(password) or None,
        database=unquote(parts.path.removeprefix("/")) or None,
        options=tuple((n, value) for n, value in options if n not in _LIBPQ_ONLY and n != "pgbouncer"),
        is_pooler="true" in flags,
    )


def _host(entry: str) -> tuple[str, int]:
    host, _, port = entry.rpartition(":") if entry.rpartition(":")[2].isdigit() else (entry, "", "")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ConfigError(
            "the host or port in the PostgreSQL URL cannot be read; "
            "are the special characters of the password percent-encoded?"
        )
    number = int(port or _DEFAULT_PORT)
    if not 0 < number < 65536:
        raise ConfigError("the port in the PostgreSQL URL is out of range")
    return unquote(host.strip("[]")) or "localhost", number
