"""Why a PostgreSQL server refused us, in words that say what to do about it.

Only what keeps a process from starting is told so; a server that is away comes back by itself. The
password is in none of these texts, and what the server said travels as `__cause__`.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Callable, Sequence

import asyncpg

from maniflex.db.postgres.address import Address
from maniflex.errors import ConfigError, Unavailable


def refusal(error: Exception, address: Address) -> ConfigError | None:
    """What has to be changed before the server lets us in; None when it may do so later."""
    for kinds, describe in _REFUSALS.items():
        if isinstance(error, kinds) and (text := describe(error, address)):
            return ConfigError(f"{address.label}: {text}")
    return None


class NoConnectionLeft(Unavailable):
    """The server answers, and has no connection left for us."""


def combine_failures(failures: Sequence[tuple[Address, Exception]]) -> Unavailable:
    """The error of an address none of whose servers will do; only logs learn where they should be."""
    full = [error for _, error in failures if isinstance(error, asyncpg.TooManyConnectionsError)]
    kind = NoConnectionLeft if full else Unavailable
    away = kind("the database cannot be reached")
    away.place = "; ".join(_describe_failure(error, address) for address, error in failures)
    away.__cause__ = full[0] if full else failures[-1][1]
    return away


def _describe_failure(error: Exception, address: Address) -> str:
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number).lower() if number is not None and number > 0 else ""
    if isinstance(error, socket.gaierror):
        reason = "there is no such host"
    if isinstance(error, TimeoutError):
        reason = "no answer in time"
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        reason = "it is a replica, which takes no writes"
    if isinstance(error, asyncpg.TooManyConnectionsError):
        reason = "it has no connection left"
    return f"{address.label}: {reason}" if reason else address.label


def _no_database(error: Exception, address: Address) -> str:
    name = address.database_name
    flags = [*(["-U", address.user] if address.user else []), name]
    if address.hosts:
        host, port = address.hosts[0]
        flags = ["-h", host, "-p", str(port), *flags]
    command = " ".join(map(shlex.quote, ["createdb", *flags]))
    sql_name = name.replace('"', '""')
    return f'there is no database "{name}"; make it with `{command}` or, in SQL, CREATE DATABASE "{sql_name}"'


def _no_login(error: Exception, address: Address) -> str:
    user = f' of "{address.user}"' if address.user else ""
    return f"the server refused the login{user}; check the user, the password and the server's pg_hba.conf"


def _no_pooler(error: Exception, address: Address) -> str:
    if "startup parameter" not in str(error):
        return ""
    return (
        "this is a connection pooler, which takes no settings for a session; "
        "set pooler=True, or ?pgbouncer=true in the address"
    )


def _no_option(error: Exception, address: Address) -> str:
    reason = str(error).partition("\n")[0] if isinstance(error, asyncpg.PostgresError) else ""
    return f"the options in the address cannot be used{f': {reason}' if reason else ''}"


_REFUSALS: dict[tuple[type[Exception], ...], Callable[[Exception, Address], str]] = {
    (asyncpg.InvalidCatalogNameError,): _no_database,
    (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidPasswordError): _no_login,
    (asyncpg.ProtocolViolationError,): _no_pooler,
    (
        asyncpg.ClientConfigurationError,
        asyncpg.UndefinedObjectError,  # a setting that the server does not know
        asyncpg.InvalidParameterValueError,
        asyncpg.CantChangeRuntimeParamError,
    ): _no_option,
}
