"""The WebSocket protocol on a real listener: messages, frames that break the rules, silence, capacity."""

from __future__ import annotations

import json
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.kit.processes import Served
from tests.kit.streams import (
    APP,
    RawSocket,
    frame,
    hear,
    next_event,
    order,
    socket_to,
    stream_of,
    streaming,
    tell,
)
from tests.kit.waiting import eventually, until

TEXT, CONT, BINARY, CLOSE, PING, PONG = 1, 0, 2, 8, 9, 10


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("streams")
    with streaming(directory, f"sqlite:///{directory}/orders.db") as served:
        yield served


async def test_a_subscription_is_acknowledged_told_and_ended(served: Served) -> None:
    async with socket_to(served) as ws:
        ack = await tell(ws, op="subscribe", patterns=["order.*"], ref={"any": 1})
        assert ack["op"] == "ack"
        assert ack["subId"] == "s_1"
        assert ack["ref"] == {"any": 1}
        assert ack["types"] == ["order.created", "order.deleted", "order.updated"]
        second = await tell(ws, op="subscribe", patterns=["*.created"])
        await order(served, 1)
        events = [await next_event(ws), await next_event(ws)]
        assert sorted(event["subId"] for event in events) == ["s_1", "s_2"]
        assert events[0]["cursor"] == events[1]["cursor"]
        assert events[0]["data"]["specversion"] == "1.0"
        assert events[0]["data"]["data"]["n"] == 1
        ended = await tell(ws, op="unsubscribe", subId=second["subId"])
        assert ended == {"op": "unsubscribed", "subId": "s_2"}
        pong = await tell(ws, op="ping")
        assert pong == {"op": "pong", "cursor": events[0]["cursor"]}


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("no json", "BAD_MESSAGE"),
        ("[1]", "BAD_MESSAGE"),
        ('{"op":"fly"}', "UNKNOWN_OP"),
        ("{}", "UNKNOWN_OP"),
        ('{"op":"subscribe"}', "NO_PATTERNS"),
        ('{"op":"subscribe","patterns":[]}', "NO_PATTERNS"),
        ('{"op":"subscribe","patterns":"order.*"}', "BAD_PATTERN"),
        ('{"op":"subscribe","patterns":["a..b"]}', "BAD_PATTERN"),
        ('{"op":"subscribe","patterns":[7]}', "BAD_PATTERN"),
        ('{"op":"subscribe","patterns":["*"],"after":7}', "BAD_MESSAGE"),
        ('{"op":"unsubscribe","subId":"s_9"}', "UNKNOWN_SUBSCRIPTION"),
        ('{"op":"auth"}', "BAD_MESSAGE"),
    ],
)
async def test_a_message_that_cannot_be_worked_on_leaves_the_connection(
    served: Served, message: str, code: str
) -> None:
    async with socket_to(served) as ws:
        await ws.send(message)
        assert (await hear(ws))["code"] == code
        assert (await tell(ws, op="ping"))["op"] == "pong"


async def test_messages_that_are_too_many_are_refused_and_then_the_connection(served: Served) -> None:
    async with socket_to(served) as ws:
        answers: list[dict[str, Any]] = []

        async def ask_on() -> None:
            while len(answers) < 600:
                answers.append(await tell(ws, op="ping"))

        with pytest.raises(ConnectionClosed) as closed:
            await ask_on()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert answers[0]["op"] == "pong"
        assert answers[-1]["code"] == "RATE_LIMITED"


def subscribe() -> bytes:
    return json.dumps({"op": "subscribe", "patterns": ["*"]}).encode()


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        pytest.param([frame(TEXT, b"{}", masked=False)], 1002, id="unmasked"),
        pytest.param([frame(TEXT, b"{}", rsv=0x40)], 1002, id="reserved bit"),
        pytest.param([frame(3, b"{}")], 1002, id="reserved opcode"),
        pytest.param([frame(PING, b"x" * 126)], 1002, id="long ping"),
        pytest.param([frame(PING, b"x", fin=False)], 1002, id="fragmented ping"),
        pytest.param([frame(CONT, b"x")], 1002, id="stray continuation"),
        pytest.param([frame(TEXT, b"\xff\xfe")], 1007, id="no UTF-8"),
        pytest.param([frame(TEXT, b"x" * (64 * 1024 + 1))], 1009, id="too large"),
        pytest.param(
            [frame(TEXT, b"x" * 40_000, fin=False), frame(CONT, b"x" * 40_000)], 1009, id="too large in parts"
        ),
    ],
)
def test_frames_that_break_the_rules_end_the_connection(
    served: Served, frames: list[bytes], code: int
) -> None:
    with RawSocket(served.port) as raw:
        assert raw.head.startswith(b"HTTP/1.1 101")
        raw.send(*frames)
        assert raw.close_code() == code
    assert "Traceback" not in served.output


def test_a_message_in_parts_is_put_together(served: Served) -> None:
    with RawSocket(served.port) as raw:
        text = subscribe()
        raw.send(frame(TEXT, text[:9], fin=False), frame(PING, b"hi"), frame(CONT, text[9:]))
        answers = dict([raw.receive(), raw.receive()])
        assert answers[PONG] == b"hi"
        assert json.loads(answers[TEXT])["op"] == "ack"
        raw.send(frame(CLOSE, struct.pack("!H", 1000)))
        assert raw.close_code() == 1000


def test_a_silent_client_is_left_and_one_that_answers_stays(tmp_path: Path) -> None:
    options: dict[str, Any] = {"ping_interval": 0.2, "read_timeout": 0.6}
    with (
        streaming(tmp_path, f"sqlite:///{tmp_path}/orders.db", **options) as served,
        RawSocket(served.port) as silent,
        RawSocket(served.port) as alive,
    ):
        pings = 0
        while pings < 8:
            opcode, payload = alive.receive()
            if opcode == PING:
                pings += 1
                alive.send(frame(PONG, payload))
        assert silent.close_code() == 1001
        alive.send(frame(TEXT, b'{"op":"ping"}'))
        while (answer := alive.receive())[0] != TEXT:
            pass
        assert json.loads(answer[1])["op"] == "pong"


async def test_places_are_counted_for_both_kinds_and_free_however_one_ends(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/orders.db"
    with streaming(tmp_path, database, max_connections=3) as served:
        raw = RawSocket(served.port)
        async with socket_to(served), stream_of(served) as first, httpx.AsyncClient() as http:
            assert first.response.status_code == 200
            refused = await http.get(f"{served.url}/sse")
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            assert refused.json()["error"]["code"] == "TOO_MANY_CONNECTIONS"
            with pytest.raises(InvalidStatus) as no_socket:
                async with socket_to(served):
                    pass
            assert no_socket.value.response.status_code == 503
            assert json.loads(no_socket.value.response.body)["error"]["code"] == "TOO_MANY_CONNECTIONS"
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.socket.close()  # a reset

            async def is_free() -> bool:
                try:
                    async with socket_to(served):
                        return True
                except InvalidStatus:
                    return False

            await eventually(is_free, "the place of the connection that was reset")


async def test_pages_of_other_origins_are_refused_on_both(tmp_path: Path, served: Served) -> None:
    own = f"http://127.0.0.1:{served.port}"
    for origin, is_fine in (("https://evil.example", False), ("null", False), (own, True)):
        async with httpx.AsyncClient() as http:
            answer = await http.head(f"{served.url}/sse", headers={"origin": origin})
        assert answer.status_code == (200 if is_fine else 403)
        if is_fine:
            async with socket_to(served, origin=origin):
                pass
        else:
            with pytest.raises(InvalidStatus) as refused:
                async with socket_to(served, origin=origin):
                    pass
            assert json.loads(refused.value.response.body)["error"]["code"] == "ORIGIN_DENIED"
    listed = "https://app.example"
    with streaming(tmp_path, f"sqlite:///{tmp_path}/o.db", origins=[listed]) as other:
        async with httpx.AsyncClient() as http:
            fine = await http.head(f"{other.url}/sse", headers={"origin": listed})
            assert fine.headers["access-control-allow-origin"] == listed
            assert fine.headers["access-control-allow-credentials"] == "true"
            assert fine.headers["vary"] == "Origin"
            assert (await http.head(f"{other.url}/sse")).status_code == 200
            assert (await http.head(f"{other.url}/sse", headers={"origin": own})).status_code == 403
        with pytest.raises(InvalidStatus):
            async with socket_to(other):
                pass
        async with socket_to(other, origin=listed):
            pass


async def test_a_token_in_a_url_is_in_no_line_of_the_log(tmp_path: Path) -> None:
    app = APP + "\nimport logging\nlogging.getLogger().setLevel(1)\n"
    with streaming(tmp_path, f"sqlite:///{tmp_path}/orders.db", app) as served:
        async with socket_to(served, "/ws?access_token=hunter2", subprotocols=["access_token.hunter3"]) as ws:
            assert ws.subprotocol == "access_token.hunter3"
            await tell(ws, op="subscribe", patterns=["*"])
        async with socket_to(served, subprotocols=["access_token.hunter4", "maniflex.v1"]) as ws:
            assert ws.subprotocol == "maniflex.v1"
        async with stream_of(served, "/sse?access_token=hunter5") as stream:
            await stream.block()
        until(lambda: "/sse" in served.output, "the line of the stream")
        assert "hunter" not in served.output


async def test_a_plain_request_is_told_to_upgrade(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url) as http:
        answer = await http.get("/ws")
        assert (answer.status_code, answer.json()["error"]["code"]) == (426, "UPGRADE_REQUIRED")
        assert answer.headers["upgrade"] == "websocket"
    with pytest.raises(InvalidStatus) as refused:
        async with socket_to(served, "/other"):
            pass
    assert refused.value.response.status_code == 404


def test_a_server_with_a_thousand_streams_stops_in_time(tmp_path: Path) -> None:
    with streaming(tmp_path, f"sqlite:///{tmp_path}/orders.db") as served:
        sockets = [RawSocket(served.port) for _ in range(500)]
        for raw in sockets:
            raw.send(frame(TEXT, subscribe()))
        streams = []
        for _ in range(500):
            stream = socket.create_connection(("127.0.0.1", served.port))
            stream.settimeout(20)
            stream.sendall(b"GET /sse HTTP/1.1\r\nHost: x\r\n\r\n")
            streams.append(stream)
        for raw in sockets:
            assert json.loads(raw.receive()[1])["op"] == "ack"
        for stream in streams:
            assert b"200 OK" in stream.recv(4096)
        began = time.monotonic()
        served.send(signal.SIGTERM)
        code = served.ended()
        took = time.monotonic() - began
        assert (code, took < 3) == (0, True), took
        for raw in sockets:
            assert raw.close_code() == 1001
        for stream in streams:
            received = b""
            while part := stream.recv(4096):
                received += part
            assert b"retry: " in received
            assert received.endswith(b"0\r\n\r\n")
            stream.close()
        for raw in sockets:
            raw.socket.close()
        assert "Traceback" not in served.output
