"""Databases for the tests, and the switch between the normal and the long run.

`database_url` runs a test once on SQLite and once on PostgreSQL, each time on an empty database; tests of the
files in `tests.kit.databases` run on SQLite alone, unless --both or --long asks for both.
PostgreSQL is never skipped by accident: without MANIFLEX_TEST_POSTGRES the tests that need it fail,
unless MANIFLEX_TEST_SQLITE_ONLY=1 says that leaving it out is meant.
"""

from __future__ import annotations

import compileall
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import certifi
import pytest
from hypothesis import HealthCheck, settings

from tests.kit.brokers import KafkaCluster, kafka_cluster
from tests.kit.databases import ON_SQLITE_ALONE
from tests.kit.forks import START_ANEW
from tests.kit.partitions import PARTITIONED, partitioned_tables
from tests.kit.postgres import PostgresPool, through_pooler

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import _nats
import _rabbitmq
import _redis

ROOT = Path(__file__).parents[1]
SQLITE_ONLY = os.environ.get("MANIFLEX_TEST_SQLITE_ONLY") == "1"
NO_BYTECODE = sys.dont_write_bytecode
DATABASES = ("sqlite",) if SQLITE_ONLY else ("sqlite", "postgres")

settings.register_profile("normal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("normal"), max_examples=2_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests marked `long`, and fuzz longer")
    parser.addoption(
        "--both", action="store_true", help="run every test of `database_url` on both databases (--long does)"
    )
    parser.addoption(
        "--partitions",
        action="store_true",
        help="run the tests on PostgreSQL alone, with runs, events, steps and messages in partitions",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--partitions"):
        os.environ[PARTITIONED] = "1"
    is_long = bool(config.getoption("--long"))
    settings.load_profile("long" if is_long else "normal")
    if is_long:
        config.option.timeout = 0
        os.environ[START_ANEW] = "1"
    # A shell starts what it runs in the background with SIGINT ignored, and so would be what tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _trust_one_authority(config)
    if NO_BYTECODE:
        _keep_bytecode(config)


def _trust_one_authority(config: pytest.Config) -> None:
    """Let clients read a single certificate: no test calls a public server, and all of them take 20 ms."""
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
    descriptor, path = tempfile.mkstemp(prefix="maniflex-test-", suffix=".pem")
    with open(descriptor, "w") as file:
        file.write(first + end)
    config.add_cleanup(lambda: os.unlink(path))
    os.environ.pop("SSL_CERT_DIR", None)
    os.environ["SSL_CERT_FILE"] = path


def _keep_bytecode(config: pytest.Config) -> None:
    """Keep compiled modules of the project: hundreds of processes import them, at half a second each.

    What tests write and import stays uncompiled, as the environment asks: a module that is written twice
    within a second, at the same length, would be taken for the first one.
    """
    if not hasattr(config, "workerinput"):
        for directory in ("src", "tests/kit", "scripts"):
            compileall.compile_dir(ROOT / directory, quiet=2)
    sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = NO_BYTECODE


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = list(items)
    if not config.getoption("--long"):
        chosen = [item for item in chosen if not item.get_closest_marker("long")]
    if config.getoption("--partitions"):
        chosen = [item for item in chosen if _runs_in_partitions(item)]
    elif not (config.getoption("--both") or config.getoption("--long")):
        chosen = [item for item in chosen if not _is_second_database(item)]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


def _is_second_database(item: pytest.Item) -> bool:
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return item.path in ON_SQLITE_ALONE and params.get("database_url") == "postgres"


def _runs_in_partitions(item: pytest.Item) -> bool:
    is_on_postgres = "postgres_pool" in getattr(item, "fixturenames", ()) or "postgres" in item.nodeid
    return is_on_postgres and not item.get_closest_marker("unpartitioned")


@pytest.fixture(autouse=True, scope="session")
def durable_tables_as_asked() -> Iterator[None]:
    """In partitions, with --partitions."""
    with partitioned_tables():
        yield


@pytest.fixture(scope="session")
def long_mode(pytestconfig: pytest.Config) -> bool:
    """Whether --long was given."""
    return bool(pytestconfig.getoption("--long"))


@pytest.fixture(scope="session")
def fuzz_cases(long_mode: bool) -> int:
    """How many requests a fuzz test sends to each database."""
    return 20_000 if long_mode else 500


@pytest.fixture(scope="session")
def postgres_pool() -> Iterator[PostgresPool]:
    if SQLITE_ONLY:
        pytest.skip("PostgreSQL is left out on request")
    if not (base_url := os.environ.get("MANIFLEX_TEST_POSTGRES")):
        pytest.fail("MANIFLEX_TEST_POSTGRES is not set; run scripts/test, which finds or starts a server")
    pool = PostgresPool(base_url)
    yield pool
    pool.close()


@pytest.fixture
def new_postgres_url(postgres_pool: PostgresPool) -> Iterator[Callable[[], str]]:
    """A call that gives one more empty PostgreSQL database, for tests that need several."""
    taken: list[str] = []

    def new() -> str:
        taken.append(postgres_pool.take())
        return through_pooler(postgres_pool.url(taken[-1]))

    yield new
    for name in taken:
        postgres_pool.give_back(name)


@pytest.fixture
def postgres_url(new_postgres_url: Callable[[], str]) -> str:
    """An empty PostgreSQL database."""
    return new_postgres_url()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/test.db"


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database: the test runs once on SQLite and once on PostgreSQL, if its file does."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis server; tests keep their keys under a prefix of their own."""
    with _redis.redis(install=False) as (url, _):
        if url is None:
            pytest.skip(_redis.HELP)
        yield url


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """A NATS server with JetStream; tests use streams of their own."""
    if os.environ.get(_nats.NO_NATS) == "1":
        pytest.skip("NATS is left out on request")
    with _nats.nats(install=False) as (url, _):
        yield url


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    """A RabbitMQ server; tests use exchanges and queues of their own."""
    if os.environ.get(_rabbitmq.NO_RABBITMQ) == "1":
        pytest.skip("RabbitMQ is left out on request")
    with _rabbitmq.rabbitmq(install=False) as (url, _):
        yield url


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """The cluster named by MANIFLEX_TEST_KAFKA, else a mock cluster in a process of its own."""
    with kafka_cluster(os.environ.get(_rabbitmq.KAFKA_VARIABLE)) as cluster:
        yield cluster
