"""`Config.from_env(prefix=, file=)`: names with a prefix, a `.env` file, and one message for all mistakes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from maniflex import Config
from maniflex._settings import read_file
from maniflex.errors import ConfigError

PREFIX = "BOOKSTORE_"


def refused(*args: object, **kwargs: object) -> list[str]:
    with pytest.raises(ConfigError) as error:
        Config.from_env(*args, **kwargs)  # type: ignore[arg-type]  # as tests like it
    return list(error.value.problems)


def test_with_a_prefix_only_names_that_have_it_count() -> None:
    environ = {"BOOKSTORE_PORT": "9001", "PORT": "eighty", "BOOKSTORE_LOG_JSON": "on"}
    config = Config.from_env(environ, prefix=PREFIX)

    assert (config.port, config.log_json) == (9001, True)
    assert (config.origin("port"), config.origin("host")) == ("BOOKSTORE_PORT", "default")


def test_unknown_names_with_the_prefix_are_all_reported_with_a_hint() -> None:
    environ = {"BOOKSTORE_PROT": "1", "BOOKSTORE_PORT": "eighty", "BOOKSTORE_STRIPE_KEY": "sk", "OTHER": "x"}

    port, misspelt, own = refused(environ, prefix=PREFIX)
    assert port == "BOOKSTORE_PORT: 'eighty' is not a whole number"
    assert "there is no such setting; did you mean 'BOOKSTORE_PORT'?" in misspelt
    assert own.endswith("If it is your own, name it in ignore=['BOOKSTORE_STRIPE_KEY']")
    assert "sk'" not in own


@pytest.mark.parametrize("name", ["STRIPE_KEY", "BOOKSTORE_STRIPE_KEY"])
def test_names_of_the_application_are_named_to_be_ignored(name: str) -> None:
    environ = {"BOOKSTORE_STRIPE_KEY": "sk", "BOOKSTORE_PORT": "9001"}

    assert Config.from_env(environ, prefix=PREFIX, ignore=[name]).port == 9001


def test_a_file_is_read_for_what_the_environment_does_not_set(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(
        "\ufeff# settings\n\nexport PORT=9001\nHOST = 0.0.0.0   # all\nSERVICE_NAME='my # shop'\n"
        'OPENAPI_TITLE="A \\"big\\"\\nshop" # quoted\nLOG_LEVEL=\nDB_WRITE_URL=postgresql://db/app#x\n'
        "PROBES_TOKEN= # none\nMETRICS_TOKEN=#of\x85sixteen\u2028letters\r\n"
    )
    config = Config.from_env({"PORT": "9002"}, file=file)

    assert (config.port, config.host, config.service_name) == (9002, "0.0.0.0", "my # shop")
    assert (config.openapi_title, config.log_level) == ('A "big"\nshop', "INFO")
    assert config.database == "postgresql://db/app#x"
    assert (config.probes_token, config.metrics_token) == (None, "#of\x85sixteen\u2028letters")
    assert Config.from_env({}, file=tmp_path / "missing") == Config()


def test_unreadable_lines_are_named_by_number_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("PORT=eighty\nSECRET hunter2\nA=\"open\nB='x' y\n1C=2\n")

    problems = refused({}, file=file)

    assert len(problems) == 5
    assert [problem for problem in problems if "line" in problem] == [
        f"{file}, line {number}: it is not NAME=value" for number in (2, 3, 4, 5)
    ]
    assert "PORT: 'eighty' is not a whole number" in problems
    assert "hunter2" not in str(problems)
    [directory] = read_file(tmp_path)[1]
    assert "cannot be read" in directory


def test_names_with_a_unit_are_taken_too() -> None:
    config = Config.from_env({"QUERY_TIMEOUT_MS": "1500", "SHUTDOWN_TIMEOUT_S": "12.5"})

    assert config.query_timeout == timedelta(seconds=1.5)
    assert config.shutdown_timeout == timedelta(seconds=12.5)
    assert refused({"QUERY_TIMEOUT_MS": "5", "QUERY_TIMEOUT": "5s"}) == [
        "QUERY_TIMEOUT_MS: QUERY_TIMEOUT is set as well; leave one of them out"
    ]
    assert refused({"SHUTDOWN_TIMEOUT_S": "5s"}) == ["SHUTDOWN_TIMEOUT_S: '5s' is not a number"]
    [too_long] = refused({"SHUTDOWN_TIMEOUT_S": "9" * 30})
    assert too_long.startswith("SHUTDOWN_TIMEOUT_S: ")
    assert too_long.endswith("is longer than a duration can be")


def test_a_config_knows_where_each_value_comes_from() -> None:
    config = Config.from_env({"PORT": "9001"}, host="::1").with_(log_json=True)

    origins = {name: config.origin(name) for name in ("port", "host", "log_json", "schema")}
    assert origins == {"port": "PORT", "host": "code", "log_json": "code", "schema": "default"}
    assert Config("sqlite:///x.db").origin("database") == "code"
    assert config == Config(port=9001, host="::1", log_json=True)
