"""Which URLs lead out of our own network, by whatever name, and which lead nowhere."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from maniflex import _outbound, _outbound_http
from maniflex._outbound import (
    MOST_BYTES,
    AddressRefused,
    Answer,
    address_problem,
    find_allowed_addresses,
    is_public,
    post,
    url_problem,
)
from tests.kit.certificates import certified
from tests.kit.processes import free_port


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


HOSTILE_HOSTS = (
    # loopback and this machine
    "127.0.0.1",
    "127.0.0.53",
    "127.255.255.254",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "api.localhost",
    "localhost.localdomain",
    "0.0.0.0",
    "0",
    "127.1",
    "127.0.1",
    "2130706433",
    "017700000001",
    "0177.0.0.1",
    "0x7f.0.0.1",
    "0x7f000001",
    "0x7F.1",
    "127.0.0.1.",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    # private networks
    "10.0.0.1",
    "10.255.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "192.168.255.255",
    "167772161",
    "0xa.1",
    "012.0.0.1",
    "[fc00::1]",
    "[fd12:3456:789a::1]",
    "[fec0::1]",
    "[::ffff:10.0.0.1]",
    # links, and what clouds keep there
    "169.254.169.254",
    "169.254.0.1",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "[fe80::1]",
    "[::ffff:169.254.169.254]",
    "[fd00:ec2::254]",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    # shared, reserved, for tests and documentation
    "100.64.0.1",
    "100.127.255.254",
    "0.1.2.3",
    "192.0.0.8",
    "192.0.2.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.9",
    "192.88.99.1",
    "240.0.0.1",
    "255.255.255.255",
    "[2001:db8::1]",
    "[3fff::1]",
    "[5f00::1]",
    "[100::1]",
    "[2001:2::1]",
    "[2001:10::1]",
    # to many at once
    "224.0.0.1",
    "239.255.255.250",
    "[ff02::1]",
    "[ff0e::1]",
    "[::ffff:224.0.0.1]",
    # one network inside another
    "[2002:7f00:1::]",
    "[2002:a00:1::1]",
    "[2002:a9fe:a9fe::]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b::10.0.0.1]",
    "[64:ff9b:1::7f00:1]",
    "[2001:0:4136:e378:8000:63bf:80ff:fffe]",
    "[::ffff:0:127.0.0.1]",
)
HOSTILE_URLS = (
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_x",
    "ftp://127.0.0.1/",
    "//127.0.0.1/",
    "127.0.0.1:80",
    "http:127.0.0.1",
    "http:///127.0.0.1",
    "http://",
    "https://user@127.0.0.1/",
    "http://example.com@127.0.0.1/",
    "http://127.0.0.1:80@example.com/",
    "http://example.com#@127.0.0.1/",
    "http://127.0.0.1/#x",
    "http://127.0.0.1\\@example.com/",
    "http://example.com\\.127.0.0.1/",
    "http://127.0.0.1%2f.example.com/",
    "http://%6c%6f%63%61%6c%68%6f%73%74/",
    "http://127.0.0.1%00.example.com/",
    "http://example.com\r\nHost: 127.0.0.1/",
    "http://exa\tmple.com/",
    "http://[::1/",
    "http://[fe80::1%25lo]/",
    "http://[::1]extra/",
    "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/",
    "http://ｌｏｃａｌｈｏｓｔ/",
    "http://127。0。0。1/",
    "http://①②⑦.⓪.⓪.①/",
    "http://example..com/",
    "http://-.example.com/",
    "http://example.com:0/",
    "http://example.com:99999/",
    "http://exam ple.com/",
    "http://example.com/" + "a" * 2048,
)
HOSTILE_ADDRESSES = [host.strip("[]") for host in HOSTILE_HOSTS if _is_address(host.strip("[]"))]
PUBLIC_URLS = (
    "https://example.com",
    "https://example.com./hook",
    "http://example.com:8080/hook?a=1&b=%20",
    "https://xn--bcher-kva.example/",
    "https://a_b.example.com/",
    "http://93.184.216.34/",
    "http://[2606:2800:220:1:248:1893:25c8:1946]:8443/",
    "http://[64:ff9b::5db8:d822]/",
)


class Door:
    """A listener on every address of loopback, and the connections that came."""

    def __init__(self, listeners: list[socket.socket], port: int) -> None:
        self.listeners = listeners
        self.port = port

    def visitors(self) -> int:
        """How many connections stand in its line; a connection is there as soon as it is made."""
        count = 0
        for listener in self.listeners:
            listener.setblocking(False)
            while True:
                try:
                    line, _ = listener.accept()
                except BlockingIOError:
                    break
                line.close()
                count += 1
        return count


@pytest.fixture
def door() -> Iterator[Door]:
    port = free_port()
    with (
        socket.create_server(("0.0.0.0", port)) as four,
        socket.create_server(("::1", port), family=socket.AF_INET6) as six,
    ):
        yield Door([four, six], port)


@contextmanager
def doors() -> Iterator[tuple[Door, Door]]:
    """One that stands for a public address, and one on loopback."""
    with (
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
        socket.create_server(("127.0.0.1", 0)) as four,
    ):
        yield Door([six], six.getsockname()[1]), Door([four], four.getsockname()[1])


@contextmanager
def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> Iterator[list[str]]:
    """A resolver whose answers change from one question about `*.test` to the next; the questions."""
    questions: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if not str(host).endswith(".test"):
            return real(host, port, *args, **options)
        addresses = answers[min(len(questions), len(answers) - 1)]
        questions.append(str(host))
        families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
        return [
            (family, socket.SOCK_STREAM, 6, "", (address, port))
            for family, address in zip(families, addresses, strict=True)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    yield questions


Sending = Callable[..., Awaitable[Answer]]


async def by_httpx(url: str, *, allow_private: bool = False, timeout: float = 0.5) -> Answer:
    async with _outbound_http.public_client(timeout=timeout, allow_private=allow_private) as client:
        return await _outbound_http.send(client, "POST", url, content=b"{}", headers={}, timeout=timeout)


async def by_thread(url: str, *, allow_private: bool = False, timeout: float = 0.5) -> Answer:
    return await asyncio.to_thread(post, url, {}, {}, timeout=timeout, allow_private=allow_private)


SENDERS = pytest.mark.parametrize("sending", [by_httpx, by_thread], ids=["httpx2", "blocking"])
NOWHERE = (AddressRefused, OSError, httpx2.HTTPError, httpx2.InvalidURL)


def test_there_are_eighty_hostile_forms() -> None:
    assert len(set(HOSTILE_HOSTS)) >= 80


@pytest.mark.parametrize("host", HOSTILE_HOSTS)
def test_a_hostile_host_is_refused_where_it_is_declared(host: str) -> None:
    url = f"http://{host}/hook"

    assert url_problem(url) or address_problem(url)


@pytest.mark.parametrize("url", HOSTILE_URLS)
def test_a_hostile_url_is_refused_where_it_is_declared(url: str) -> None:
    assert url_problem(url)


@pytest.mark.parametrize("url", PUBLIC_URLS)
def test_a_sound_url_is_taken(url: str) -> None:
    assert url_problem(url) is None
    assert address_problem(url) is None


@SENDERS
@pytest.mark.parametrize("host", HOSTILE_HOSTS)
async def test_a_hostile_host_is_not_connected_to(door: Door, sending: Sending, host: str) -> None:
    with pytest.raises(NOWHERE) as refused:
        await sending(f"http://{host}:{door.port}/")

    assert door.visitors() == 0
    if isinstance(refused.value, httpx2.HTTPError):
        assert "was not found" in str(refused.value)


@SENDERS
@pytest.mark.parametrize("url", HOSTILE_URLS)
async def test_a_hostile_url_is_not_connected_to(door: Door, sending: Sending, url: str) -> None:
    for text in (url, url.replace("127.0.0.1", f"127.0.0.1:{door.port}")):
        with pytest.raises(NOWHERE):
            await sending(text)

    assert door.visitors() == 0


@SENDERS
@pytest.mark.parametrize("address", HOSTILE_ADDRESSES)
async def test_a_name_of_a_hostile_address_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch, door: Door, sending: Sending, address: str
) -> None:
    with resolving(monkeypatch, [address]) as questions, pytest.raises(AddressRefused) as refused:
        await sending(f"http://name.test:{door.port}/")

    assert door.visitors() == 0
    assert questions == ["name.test"]
    assert str(refused.value) == "name.test has an address that is not public"


@SENDERS
async def test_one_address_of_several_refuses_all(
    monkeypatch: pytest.MonkeyPatch, door: Door, sending: Sending
) -> None:
    with (
        resolving(monkeypatch, ["93.184.216.34", "2606:2800::1", "127.0.0.1"]),
        pytest.raises(AddressRefused),
    ):
        await sending(f"http://name.test:{door.port}/")

    assert door.visitors() == 0


@SENDERS
async def test_a_name_that_leads_elsewhere_from_one_moment_to_the_next_reaches_nothing(
    monkeypatch: pytest.MonkeyPatch, sending: Sending
) -> None:
    monkeypatch.setattr(_outbound, "is_public", lambda address: address == "::1")
    with doors() as (public, private):
        with resolving(monkeypatch, ["::1"], ["127.0.0.1"], ["::1", "127.0.0.1"]) as questions:
            with pytest.raises((OSError, httpx2.HTTPError)):
                await sending(f"http://name.test:{public.port}/")  # which takes the line and says nothing
            for _ in range(2):
                with pytest.raises(AddressRefused):
                    await sending(f"http://name.test:{private.port}/")

        assert questions == ["name.test"] * 3  # once for each attempt, and judged each time
        assert (public.visitors(), private.visitors()) == (1, 0)


async def test_a_host_is_judged_by_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    with resolving(monkeypatch, ["93.184.216.34", "93.184.216.34", "2606:2800:220:1::1"]):
        addresses = await find_allowed_addresses("name.test", 443)

    assert addresses == ["93.184.216.34", "2606:2800:220:1::1"]
    assert all(is_public(address) for address in addresses)


# What is sent where it may be sent.


class Receiver:
    """Answers each request with the same bytes and keeps what it was sent."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.heard: list[bytes] = []
        self.names: list[str] = []  # that TLS asked for

    async def receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            self.heard.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.answer)
            await writer.drain()
        writer.close()

    @asynccontextmanager
    async def listen(self, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
        server = await asyncio.start_server(self.receive, "127.0.0.1", 0, ssl=context)
        async with server:
            yield server.sockets[0].getsockname()[1]


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@SENDERS
async def test_a_name_stays_in_the_host_header_and_in_tls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sending: Sending
) -> None:
    receiver = Receiver(OK)
    context = certified(tmp_path, "name.test")
    context.sni_callback = lambda sock, name, own: receiver.names.append(name)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    async with receiver.listen(context) as port:
        with resolving(monkeypatch, ["127.0.0.1"]):
            answer = await sending(f"https://name.test:{port}/", allow_private=True, timeout=10)

    assert (answer.status, answer.text) == (200, "ok")
    assert receiver.names == ["name.test"]
    assert f"Host: name.test:{port}\r\n".encode() in receiver.heard[0]


@SENDERS
@pytest.mark.parametrize("name", ["name.test", "other.test"], ids=["of nobody", "of another name"])
async def test_a_certificate_that_proves_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sending: Sending, name: str
) -> None:
    receiver = Receiver(OK)
    context = certified(tmp_path, name)
    if name == "other.test":
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    async with receiver.listen(context) as port:
        with (
            resolving(monkeypatch, ["127.0.0.1"]),
            pytest.raises((ssl.SSLError, httpx2.ConnectError), match=r"(?i)certificate"),
        ):
            await sending(f"https://name.test:{port}/", allow_private=True, timeout=10)

    assert receiver.heard == []


@SENDERS
async def test_proxies_of_the_environment_are_not_asked(
    monkeypatch: pytest.MonkeyPatch, door: Door, sending: Sending
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{door.port}")
    receiver = Receiver(OK)
    async with receiver.listen() as port:
        answer = await sending(f"http://127.0.0.1:{port}/", allow_private=True, timeout=10)

    assert answer.status == 200
    assert door.visitors() == 0


@SENDERS
async def test_a_redirect_is_an_answer(door: Door, sending: Sending) -> None:
    away = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{door.port}/\r\nContent-Length: 0\r\n\r\n"
    async with Receiver(away.encode()).listen() as port:
        answer = await sending(f"http://127.0.0.1:{port}/", allow_private=True, timeout=10)

    assert answer.status == 302
    assert door.visitors() == 0


@SENDERS
async def test_64_kilobytes_of_an_answer_are_kept(sending: Sending) -> None:
    long = b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n" + b"x" * 10_000_000
    async with Receiver(long).listen() as port:
        answer = await sending(f"http://127.0.0.1:{port}/", allow_private=True, timeout=10)

    assert (len(answer.text), answer.truncated) == (MOST_BYTES, True)


@SENDERS
async def test_an_answer_that_does_not_come_is_given_up_in_time(sending: Sending) -> None:
    async with Receiver(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").listen() as port:
        with pytest.raises((TimeoutError, OSError, httpx2.RemoteProtocolError)):
            await sending(f"http://127.0.0.1:{port}/", allow_private=True)
