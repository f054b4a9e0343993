"""What a batch costs: CPU of a serving process for a hundred creates in one request, and in a hundred."""

from __future__ import annotations

import os
from pathlib import Path

import httpx

from tests.kit.processes import serve_process

APP = """
import os
from maniflex import Model, Server

class Item(Model):
    name: str
    price: int = 0

server = Server(os.environ["DB"])
server.register(Item)
server.enable_batch()
"""
MOST = 0.5
TURNS = 20
TRIES = 3


def cpu_seconds(pid: int) -> float:
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


def test_a_batch_of_a_hundred_creates_costs_at_most_half_of_a_hundred_requests(
    database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    one = {"name": "tea", "price": 3}
    many = {"operations": [{"method": "POST", "path": "/items", "body": one}] * 100}
    ratios = []
    with (
        serve_process(tmp_path, DB=database_url) as served,
        httpx.Client(base_url=f"{served.url}/api", timeout=60) as http,
    ):
        pid = served.process.pid
        for _ in range(TRIES):
            apart = together = 0.0
            for _ in range(TURNS):
                began = cpu_seconds(pid)
                for _ in range(100):
                    assert http.post("/items", json=one).status_code == 201
                between = cpu_seconds(pid)
                assert http.post("/batch", json=many).status_code == 200
                apart, together = apart + between - began, together + cpu_seconds(pid) - between
            ratios.append(together / apart)
            if ratios[-1] <= MOST:
                break
    assert min(ratios) <= MOST, ratios
