"""What a PostgreSQL that lets nobody in makes of the start: what is wrong, where, and what to do."""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit

import asyncpg
import pytest

from maniflex import Server
from maniflex.db.postgres.hosts import combine_failures, parse_address, refusal
from maniflex.errors import ConfigError, Unavailable
from maniflex.pipeline.response import error_response

PASSWORD = "hunter2"


def with_password(url: str, path: str, user: str = "") -> str:
    """The address of the test database, with a password it does not ask for."""
    parts = urlsplit(url)
    host = f"{parts.hostname or 'localhost'}:{parts.port or 5432}"
    return f"postgresql://{user or parts.username or 'postgres'}:{PASSWORD}@{host}{path}"


async def refused(url: str) -> str:
    with pytest.raises(ConfigError) as stopped:
        await Server(database=url).start()
    assert PASSWORD not in str(stopped.value)
    return str(stopped.value)


async def test_a_database_that_is_not_there_comes_with_the_command_that_makes_it(postgres_url: str) -> None:
    url = with_password(postgres_url, "/no%20such%22shop")

    message = await refused(url)

    assert 'there is no database "no such"shop"' in message
    assert 'CREATE DATABASE "no such""shop"' in message
    command = shlex.split(message.partition("`")[2].partition("`")[0])
    address = parse_address(url)
    [(host, port)] = address.hosts
    assert command == ["createdb", "-h", host, "-p", str(port), "-U", address.user, 'no such"shop']


async def test_the_advised_statement_makes_the_database(postgres_url: str) -> None:
    url = with_password(postgres_url, "/advised_database")
    statement = (await refused(url)).partition("in SQL, ")[2]
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(statement)
        server = Server(database=url)
        await server.start()
        await server.stop()
    finally:
        await connection.execute("DROP DATABASE IF EXISTS advised_database")
        await connection.close()


async def test_a_login_that_is_refused_names_the_user(postgres_url: str) -> None:
    message = await refused(with_password(postgres_url, "/postgres", user="nobody_here"))

    assert 'the server refused the login of "nobody_here"' in message
    assert "pg_hba.conf" in message


async def test_an_option_the_server_does_not_know_is_named(postgres_url: str) -> None:
    message = await refused(with_password(postgres_url, "/postgres?shoe_size=43"))

    assert "the options in the address cannot be used" in message
    assert "shoe_size" in message


def test_a_pooler_is_told_from_a_server_by_what_it_refuses() -> None:
    address = parse_address("postgresql://ada@localhost:6432/shop")
    said = asyncpg.ProtocolViolationError("unsupported startup parameter: statement_timeout")

    told = refusal(said, address)

    assert told is not None
    assert "set pooler=True" in str(told)
    assert refusal(asyncpg.ProtocolViolationError("something else"), address) is None


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://ada:hunter2@127.0.0.1:1/shop", "postgresql:shop@127.0.0.1:1: connection refused"),
        (
            "postgresql://ada:hunter2@nowhere.invalid/shop",
            "postgresql:shop@nowhere.invalid:5432: there is no",
        ),
    ],
)
async def test_a_server_that_is_away_is_named_in_logs_and_not_to_clients(url: str, told: str) -> None:
    with pytest.raises(Unavailable, match="cannot be reached") as away:
        await Server(database=url).start()

    assert told in str(away.value)
    assert PASSWORD not in str(away.value)
    answer = error_response(away.value).error
    assert answer is not None
    assert answer["message"] == "the service is temporarily unavailable"


def test_a_server_that_says_nothing_is_told_from_one_that_refuses() -> None:
    address = parse_address("postgresql://localhost/shop")

    assert str(combine_failures([(address, TimeoutError())])).endswith("no answer in time)")
