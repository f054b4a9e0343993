"""A process is killed right after its answers, with its audit sink down: no committed write goes untold."""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from pathlib import Path

import httpx

from tests.kit.processes import Served, serve_process
from tests.kit.waiting import until

APP = """
from pathlib import Path
from maniflex import Model, Operation, Server
from maniflex.middleware import db

HERE = Path(__file__).parent
seen = set()


class Order(Model, table="killed_orders"):
    number: int = 0


class Sink:
    def write(self, record):
        if not (HERE / "up").exists():
            raise OSError("the sink is down")
        with (HERE / "trail.txt").open("a") as trail:
            trail.write(f"{record.id} {record.resource_id}\\n")
        if record.id not in seen:  # as if the answer of the sink was lost
            seen.add(record.id)
            raise OSError("no answer")


server = Server(
    DATABASE,
    path_prefix="",
    outbox_base_backoff=0.05,
    outbox_poll_interval=0.1,
    outbox_max_attempts=1000,
    work_lease=1.0,
    lock_timeout=30,
)
server.register(Order)
server.pipeline.db.register(db.audit_log(Sink()), operations=Operation.WRITES)
"""
ROUNDS = 2
ANSWERS = 15  # before each kill
CLIENTS = 3


class Trail:
    """What the sink has got so far."""

    def __init__(self, place: Path) -> None:
        self._path = place / "trail.txt"

    def ids(self) -> dict[str, list[str]]:
        """The ids of the records of each order, as often as they came."""
        ids = defaultdict(list)
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            record, order = line.split()
            ids[order].append(record)
        return ids


def write_until_killed(served: Served) -> set[str]:
    """Orders that were answered with 201 before the kill, which comes in the middle of others."""
    answered: set[str] = set()
    enough = threading.Event()

    def write() -> None:
        with httpx.Client(base_url=served.url) as http:
            while True:
                try:
                    answer = http.post("/killed_orders", json={"number": 1})
                except httpx.TransportError:
                    return
                answered.add(answer.json()["data"]["id"])
                if len(answered) >= ANSWERS:
                    enough.set()

    clients = [threading.Thread(target=write) for _ in range(CLIENTS)]
    for one in clients:
        one.start()
    assert enough.wait(40)
    os.killpg(served.process.pid, signal.SIGKILL)
    for one in clients:
        one.join()
    return answered


def test_every_write_is_delivered_after_a_kill(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(f"DATABASE = {database_url!r}\n{APP}")
    trail, answered = Trail(tmp_path), set[str]()
    for _ in range(ROUNDS):
        with serve_process(tmp_path) as served:
            answered |= write_until_killed(served)
    assert trail.ids() == {}  # the sink was down all the time
    (tmp_path / "up").touch()
    with serve_process(tmp_path) as served, httpx.Client() as http:
        last = http.post(f"{served.url}/killed_orders", json={"number": 2}).json()["data"]["id"]
        total = http.get(f"{served.url}/killed_orders?limit=1").json()["meta"]["total"]

        def is_told() -> bool:
            ids = trail.ids()
            return len(ids) == total and all(len(records) > 1 for records in ids.values())

        until(is_told, f"{total} writes in the trail")
        ids = trail.ids()
    assert answered <= ids.keys()
    assert last in ids
    assert all(len(set(records)) == 1 for records in ids.values())  # one write, one id, however often it came
