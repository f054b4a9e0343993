"""The body of `scripts/test`: an environment, a PostgreSQL, then every check in turn."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import _chromium
import _nats
import _network_tools
import _object_stores
import _postgres
import _rabbitmq
import _redis
import _venv
from _stages import Stage, run_stages

DESCRIPTION = """\
Check the whole project: ruff, mypy, then all tests, on SQLite and PostgreSQL where the database matters.

PostgreSQL is looked for in this order: the URL in MANIFLEX_TEST_POSTGRES; a server on
127.0.0.1:5432 that lets us create databases; server binaries on this machine (a temporary
cluster); as root on Debian, the `postgresql` package. If there is none, this fails. Redis is looked
for in the same way (MANIFLEX_TEST_REDIS, 127.0.0.1:6379, `redis-server`, the package); if there is
none, its tests are skipped. NATS too (MANIFLEX_TEST_NATS, `nats-server`, 127.0.0.1:4222, the package); if
there is none, this fails, and so is RabbitMQ (MANIFLEX_TEST_RABBITMQ, 127.0.0.1:5672, `rabbitmq-server`, the
package). Tests of events in Kafka use the mock cluster of its client, and a real one as well where
MANIFLEX_TEST_KAFKA names it. For the tests of storage, moto (S3) and Azurite (Azure) are started;
Azurite is installed by npm into .tools/ if it is not there, and without Node.js this fails.

HAProxy and PgBouncer are programs of this machine or, as root on Debian, its packages; without them this
fails, unless --no-haproxy and --no-pgbouncer leave them out.
The tests of the panel need Chromium: MANIFLEX_TEST_CHROMIUM, one on the PATH, or as root on Debian the
package; without one this fails, unless --no-browser leaves them out.

When no more than five tests of a whole run fail, exactly these run once more, alone, and the last lines
name those that pass then; --no-second-try switches that off.

Tests of middleware, routes, pages and declarations run on SQLite alone (tests/kit/databases.py); with --both
or --long, every test runs on both databases.

All other arguments go to pytest:  scripts/test -k etag   scripts/test --long   scripts/test tests/http"""


ALONE = ("concurrency", "faults", "performance", "scaling")  # they watch the clock, except for these:
WITHOUT_CLOCK = (
    *(
        "concurrency/test_same_record.py",
        "concurrency/test_sqlite_writers.py",
        "concurrency/test_transfers.py",
    ),
    *("faults/test_audit_kill.py", "faults/test_bulk_kill.py", "faults/test_files_kill.py"),
    *("faults/test_import_kill.py", "faults/test_kill.py", "faults/test_outbox_kill.py"),
    *("faults/test_outbox_relays.py", "faults/test_outbox_restarts.py", "faults/test_panel_kill.py"),
    *("faults/test_runs_claim_race.py", "faults/test_runs_postgres_crash.py"),
    *("faults/test_runs_postgres_restart.py", "faults/test_saga_kill.py", "faults/test_schedulers.py"),
    # They count memory or CPU of their own processes.
    *("performance/test_cascades.py", "performance/test_decimals.py"),
    *("performance/test_export_memory.py", "performance/test_import_memory.py"),
    *("scaling/test_pgbouncer.py", "scaling/test_partitions.py", "scaling/test_partition_operators.py"),
    *("scaling/test_partition_attacks.py", "scaling/test_partition_kills.py"),
    *("scaling/test_partitioned_claims.py", "scaling/test_partitioned_messages.py"),
    "scaling/test_synchronous_commits.py",
)
# They wait for leases that run out and servers that go away, and bear one other process beside them.
PAIRED = (
    *("faults/test_database_faults.py", "faults/test_runs_kill.py", "faults/test_runs_zombie.py"),
    *("faults/test_silent_database.py", "scaling/test_failover.py", "scaling/test_full_database.py"),
    *("scaling/test_outage_logs.py", "scaling/test_read_your_writes.py", "scaling/test_releases.py"),
    *("scaling/test_replica_away.py", "scaling/test_strayed_replica.py"),
)
LONGEST = (
    *("types", "query", "openapi", "fuzz", "docs", "examples", "cli", "lifecycle"),
    *("background", "admin", "catalogue"),
)
MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30


def main() -> int:
    parser = argparse.ArgumentParser(
        "scripts/test", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sqlite-only", action="store_true", help="leave PostgreSQL out, knowingly")
    parser.add_argument("--no-azure", action="store_true", help="leave Azurite out, knowingly")
    parser.add_argument("--no-nats", action="store_true", help="leave NATS out, knowingly")
    parser.add_argument("--no-rabbitmq", action="store_true", help="leave RabbitMQ out, knowingly")
    for tool in _network_tools.TOOLS:
        parser.add_argument(
            f"--no-{tool.name}", action="store_true", help=f"leave {tool.name} out, knowingly"
        )
    parser.add_argument("--no-browser", action="store_true", help="leave Chromium out, knowingly")
    parser.add_argument("--no-second-try", action="store_true", help="a test that fails once has failed")
    parser.add_argument("--both", action="store_true", help="run every test on both databases")
    options, for_pytest = parser.parse_known_args()
    _venv.reexec_inside(_venv.ensure("dev"))
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, _exit)
    try:
        with ExitStack() as stack:
            environment = {
                **_environment(stack, sqlite_only=options.sqlite_only),
                **_object_store_variables(stack, no_azure=options.no_azure),
                **_tool_variables(options),
                **_nats_variables(stack, no_nats=options.no_nats),
                **_rabbitmq_variables(stack, no_rabbitmq=options.no_rabbitmq),
                **_chromium_variables(no_browser=options.no_browser),
            }
            stages = checks(
                for_pytest, environment, has_second_try=not options.no_second_try, on_both=options.both
            )
            return run_stages(stages, _venv.ROOT)
    except _postgres.NoPostgres as problem:
        print(f"postgres  none\n\n{problem}", file=sys.stderr)
        return 1
    except _object_stores.NoObjectStore as problem:
        print(f"objects   none\n\n{problem}", file=sys.stderr)
        return 1
    except _nats.NoNats as problem:
        print(f"nats      none\n\n{problem}", file=sys.stderr)
        return 1
    except _rabbitmq.NoRabbit as problem:
        print(f"rabbitmq  none\n\n{problem}", file=sys.stderr)
        return 1
    except _network_tools.NoTool as problem:
        print(f"network   none\n\n{problem}", file=sys.stderr)
        return 1
    except _chromium.NoChromium as problem:
        print(f"chromium  none\n\n{problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _environment(stack: ExitStack, *, sqlite_only: bool) -> dict[str, str]:
    address, found = stack.enter_context(_redis.redis())
    print(f"redis     {found}", flush=True)
    given = dict(os.environ) if address is None else {**os.environ, _redis.VARIABLE: address}
    if sqlite_only:
        print("postgres  left out (--sqlite-only)", flush=True)
        return {**given, "MANIFLEX_TEST_SQLITE_ONLY": "1"}
    url, origin = stack.enter_context(_postgres.postgres())
    print(f"postgres  {origin}", flush=True)
    environment = {**given, _postgres.VARIABLE: url}
    environment.pop("MANIFLEX_TEST_SQLITE_ONLY", None)
    return environment


def _object_store_variables(stack: ExitStack, *, no_azure: bool) -> dict[str, str]:
    endpoint, origin = stack.enter_context(_object_stores.s3())
    print(f"s3        {origin}", flush=True)
    variables = {_object_stores.S3_VARIABLE: endpoint}
    if no_azure:
        print("azure     left out (--no-azure)", flush=True)
        return {**variables, _object_stores.NO_AZURE: "1"}
    endpoint, origin = stack.enter_context(_object_stores.azure())
    print(f"azure     {origin}", flush=True)
    return {**variables, _object_stores.AZURE_VARIABLE: endpoint}


def _nats_variables(stack: ExitStack, *, no_nats: bool) -> dict[str, str]:
    if no_nats:
        print("nats      left out (--no-nats)", flush=True)
        return {_nats.NO_NATS: "1"}
    url, origin = stack.enter_context(_nats.nats())
    print(f"nats      {origin}", flush=True)
    return {_nats.VARIABLE: url}


def _rabbitmq_variables(stack: ExitStack, *, no_rabbitmq: bool) -> dict[str, str]:
    kafka = os.environ.get(_rabbitmq.KAFKA_VARIABLE)
    print(
        f"kafka     {'the cluster named by ' + _rabbitmq.KAFKA_VARIABLE if kafka else 'a mock cluster'}",
        flush=True,
    )
    if no_rabbitmq:
        print("rabbitmq  left out (--no-rabbitmq)", flush=True)
        return {_rabbitmq.NO_RABBITMQ: "1"}
    url, origin = stack.enter_context(_rabbitmq.rabbitmq())
    print(f"rabbitmq  {origin}", flush=True)
    return {_rabbitmq.VARIABLE: url}


def _tool_variables(options: argparse.Namespace) -> dict[str, str]:
    variables = {}
    for tool in _network_tools.TOOLS:
        if getattr(options, f"no_{tool.name}"):
            print(f"{tool.name:<9} left out (--no-{tool.name})", flush=True)
            variables[tool.left_out] = "1"
        else:
            variables[tool.variable], origin = _network_tools.find(tool)
            print(f"{tool.name:<9} {origin}", flush=True)
    return variables


def _chromium_variables(*, no_browser: bool) -> dict[str, str]:
    if no_browser:
        print("chromium  left out (--no-browser)", flush=True)
        return {_chromium.NO_BROWSER: "1"}
    path, origin = _chromium.find()
    if path is None:
        raise _chromium.NoChromium(origin)
    print(f"chromium  {origin}", flush=True)
    return {_chromium.VARIABLE: path}


def checks(
    for_pytest: list[str], environment: dict[str, str], *, has_second_try: bool = True, on_both: bool = False
) -> list[Stage]:
    """Every check in turn: of the whole project, or its style and types and the tests that were asked for."""
    style_and_types = [
        Stage("ruff", ["ruff", "check", "."], environment),
        Stage("format", ["ruff", "format", "--check", "."], environment),
        Stage("mypy", ["mypy"], environment),
    ]
    databases = ["--both"] if on_both else []
    if for_pytest:
        # What is asked for by name may be a test that kills processes or measures: it keeps to the disk.
        return [*style_and_types, Stage("pytest", ["pytest", *databases, *for_pytest], environment)]
    together, in_pairs, alone = _whole_suite()
    in_memory = {**_files_in_memory(), **environment}
    anew = {**environment, "MANIFLEX_TEST_START_ANEW": "1"}
    return [
        *style_and_types,
        Stage("pytest", ["pytest", *databases, *together], in_memory, has_second_try),
        Stage("pairs", ["pytest", *databases, *in_pairs], anew, has_second_try),
        Stage("alone", ["pytest", *databases, *alone], anew, has_second_try),
    ]


def _files_in_memory() -> dict[str, str]:
    """The place for the tests' files if memory has room: SQLite waits for the disk at every commit."""
    enough = MEMORY.is_dir() and min(shutil.disk_usage(MEMORY).free, _free_memory()) > ROOM
    return {"PYTEST_DEBUG_TEMPROOT": str(MEMORY)} if enough else {}


def _free_memory() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _whole_suite() -> tuple[list[str], list[str], list[str]]:
    """The arguments for tests that run side by side, for those that bear one other, and for the rest."""
    everywhere = sorted(
        path for path in (_venv.ROOT / "tests").iterdir() if path.name.startswith("test_") or path.is_dir()
    )
    # Files that take long are begun early: otherwise one process works on the last of them alone.
    everywhere.sort(key=lambda path: path.name not in LONGEST)
    together = [str(path.relative_to(_venv.ROOT)) for path in everywhere if path.name not in ALONE]
    without_clock = [f"tests/{name}" for name in WITHOUT_CLOCK]
    paired = [f"tests/{name}" for name in PAIRED]
    others = [f"--ignore={name}" for name in (*without_clock, *paired)]
    alone = [*(f"tests/{name}" for name in ALONE), *others]
    processors = os.cpu_count() or 1
    return (
        [*_side_by_side(min(processors, 4)), *without_clock, *together],
        [*_side_by_side(min(processors, 2)), *paired],
        alone,
    )


def _side_by_side(processes: int) -> list[str]:
    return ["-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder"]


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
