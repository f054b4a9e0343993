"""The body of `scripts/demo`: an environment, then the examples, the blog with sample data."""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import _venv

if TYPE_CHECKING:
    from maniflex import Server

HOST = "127.0.0.1"


def main() -> int:
    parser = argparse.ArgumentParser(
        "scripts/demo", description="Serve the examples, a blog and a shop, until Ctrl-C."
    )
    parser.add_argument("--port", type=_port, default=8080, help="the port to listen on (8080)")
    parser.add_argument("--database", help="sqlite:///… or postgresql://… (a file in .demo/)")
    options = parser.parse_args()
    if _busy(options.port):
        print(f"scripts/demo: port {options.port} is in use; choose another with --port", file=sys.stderr)
        return 1
    needs = ["postgres"] if (options.database or "").startswith("postgres") else []
    _venv.reexec_inside(_venv.ensure(*needs))
    serve(options.database or _default_database(), options.port)
    return 0


def serve(database: str, port: int) -> None:
    sys.path.insert(0, str(_venv.ROOT))
    from examples.blog.app import create_server
    from examples.blog.sample_data import load
    from examples.orders.app import add_shop

    server = create_server(database, port)
    add_shop(server)

    async def fill() -> None:
        await load(server)

    async def announce() -> None:
        await _listening(port)
        print(await _welcome(server, f"http://{HOST}:{port}"), flush=True)

    server.on_start(fill)
    server.go(announce)
    with suppress(KeyboardInterrupt):
        server.run()
    print("scripts/demo: stopped", flush=True)


def _port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port number")
    return int(text)


def _busy(port: int) -> bool:
    with socket.socket() as probe:
        # As the server itself does: a port that a stopped server has just left is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def _default_database() -> str:
    directory = _venv.ROOT / ".demo"
    directory.mkdir(exist_ok=True)
    return f"sqlite:///{directory}/blog.db"


async def _listening(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def _welcome(server: Server, url: str) -> str:
    from examples.blog.app import Post, User

    users = await server.db(User).list(limit=1)
    posts = await server.db(Post).list(limit=1)
    send = "-H 'Content-Type: application/json' -d"
    lines = [
        f"The blog is at {url}/api: users, posts, comments. Its reference is at {url}/docs. Try:",
        f"curl '{url}/api/posts?filter=status:eq:published&sort=title:asc&limit=3'",
        f"curl '{url}/api/users?sort=name:asc'",
    ]
    if users:
        body = f'{{"title": "Hello", "body": "From curl", "user_id": "{users[0].id}"}}'
        lines.append(f"curl -X POST {url}/api/posts {send} '{body}'")
    if posts:
        lines.append(f'curl -X PATCH {url}/api/posts/{posts[0].id} {send} \'{{"title": "Changed"}}\'')
    lines.append(f'curl -X POST {url}/api/posts {send} \'{{"status": "weekly"}}\'   # 422, and why')
    return "\n".join(["\n  ".join(lines), *_shop(url, send), "Ctrl-C stops it; the data stays."])


def _shop(url: str, send: str) -> list[str]:
    """What there is to try about durable work."""
    place = f"curl -X POST {url}/api/orders/place -H 'X-User: ada' {send}"
    last, ada = "sort=created_at:desc&limit=1", "-H 'X-User: ada'"
    lines = [
        "In the shop, an order, the run that sends its receipt and the message to the warehouse are one"
        " transaction:",
        f"""{place} '{{"item": "Tea", "price": "4.50"}}'""",
        f"curl '{url}/api/receipts?{last}'   # the receipt has arrived",
        f"curl '{url}/api/shipments?{last}'   # the warehouse knows",
        f"curl '{url}/api/workflow_run?{last}' {ada}   # the run, shown to whose it is",
        f"curl '{url}/api/workflow_event?sort=created_at:desc&limit=3' {ada}   # what happened to it",
        f"curl '{url}/api/outbox_event?{last}' -H 'X-User: admin'   # the message",
        f"""{place} '{{"item": "Tea", "price": "4.50", "fail": true}}'   # 409, and none of them is left""",
    ]
    return ["\n  ".join(lines)]


if __name__ == "__main__":
    sys.exit(main())
