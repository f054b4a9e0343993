"""The body of `scripts/demo`: an environment, then the examples with sample data, each on its path."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _venv

if TYPE_CHECKING:
    from maniflex import Server

HOST = "127.0.0.1"
SUPERUSER = "demo@example.org"
SEND = "-H 'Content-Type: application/json' -d"
# Puts the access token of an answer into a variable of the shell.
TOKEN = 'sed \'s/.*"access_token":"\\([^"]*\\).*/\\1/\''
SECRET = 'sed \'s/.*"secret":"\\([^"]*\\).*/\\1/\''  # the same of a secret
RECEIVER_PORT = 8090
MANIFLEX = ".venv/bin/maniflex"
ID = 'sed \'s/.*"id":"\\([^"]*\\).*/\\1/\''  # the same of the last record of an answer


def main() -> int:
    parser = argparse.ArgumentParser(
        "scripts/demo",
        description="Serve the examples, a blog, a shop and a service for companies, until Ctrl-C.",
    )
    parser.add_argument("--port", type=_port, default=8080, help="the port to listen on (8080)")
    parser.add_argument("--database", help="sqlite:///… or postgresql://… (files in .demo/)")
    options = parser.parse_args()
    if _busy(options.port):
        print(f"scripts/demo: port {options.port} is in use; choose another with --port", file=sys.stderr)
        return 1
    needs = ["postgres"] if (options.database or "").startswith("postgres") else []
    _venv.reexec_inside(_venv.ensure("admin", "auth", "http", *needs))
    serve(options.database or f"sqlite:///{_venv.ROOT}/.demo/blog.db", options.port)
    return 0


def serve(database: str, port: int) -> None:
    sys.path.insert(0, str(_venv.ROOT))
    from examples.blog.app import create_server
    from examples.secret_files import secret_in

    data = _data_directory(database)
    password = secret_in(data / "demo_password", 9)
    blog = create_server(database, port)
    blog.admin(title="Blog")
    beside = Beside(database, data, password)
    blog.add_service(beside)
    blog.use(beside.mount)

    async def fill() -> None:
        from examples.blog.sample_data import load

        await load(blog)
        await _add_superuser(blog, password)

    async def announce() -> None:
        await _listening(port)
        print(await _welcome(blog, beside, f"http://{HOST}:{port}", data, password), flush=True)

    blog.on_start(fill)
    blog.go(announce)
    with suppress(KeyboardInterrupt):
        blog.run()
    print("scripts/demo: stopped", flush=True)


class Beside:
    """The shop and the service for companies: started and stopped with the blog, each below its path."""

    def __init__(self, database: str, data: Path, password: str) -> None:
        from examples.orders.server import create_server as create_shop
        from examples.orders.server import mailer_of
        from examples.saas.server import create_server as create_saas
        from examples.secret_files import secret_in
        from maniflex import Config
        from maniflex.storage import LocalStorage

        def config(name: str, storage: LocalStorage | None = None) -> Config:
            schema = name if database.startswith("postgres") else None
            return Config(database=_beside(database, name), schema=schema, storage=storage)

        pictures = LocalStorage(data / "shop_pictures")
        self.shop = create_shop(
            config("shop", pictures),
            secret_in(data / "shop_secret"),
            secret_in(data / "encryption_key"),
            mailer=mailer_of(os.environ),
            local_webhooks=True,
        )
        self.saas = create_saas(config("saas"), secret_in(data / "saas_secret"))
        self.shop.admin(title="Shop")
        self.saas.admin(title="Companies")
        self._password = password
        self._running = AsyncExitStack()

    def mount(self, app: Any) -> Any:
        from starlette.routing import Mount, Router

        return Router([Mount("/shop", self.shop), Mount("/saas", self.saas)], default=app)

    async def start(self) -> None:
        from examples.orders.sample_data import load as fill_shop
        from examples.saas.sample_data import load as fill_saas

        await self._running.enter_async_context(self.shop.lifespan())
        await self._running.enter_async_context(self.saas.lifespan())
        await fill_shop(self.shop, self._password)
        await fill_saas(self.saas, self._password)
        await _add_superuser(self.shop, self._password)
        [acme] = await self.saas.db("Organization").list({"name": "Acme"}, limit=1)
        await _add_superuser(self.saas, self._password, tenant_id=acme.id)

    async def stop(self) -> None:
        await self._running.aclose()


async def _add_superuser(server: Server, password: str, *, tenant_id: str | None = None) -> None:
    """The person who may enter the panel, made once."""
    superusers = server.superusers
    if not await superusers.any():
        await superusers.create(SUPERUSER, password, tenant_id=tenant_id)


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


def _data_directory(database: str) -> Path:
    """Where passwords and secrets are kept: beside the files of SQLite, else in .demo."""
    scheme, _, path = database.partition(":///")
    is_file = scheme == "sqlite" and path != ":memory:"
    directory = Path(path).parent if is_file else _venv.ROOT / ".demo"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _beside(database: str, name: str) -> str:
    """The database of a further example: a file beside the first one, on PostgreSQL the same."""
    scheme, _, path = database.partition(":///")
    if scheme != "sqlite" or path == ":memory:":
        return database
    return f"sqlite:///{Path(path).with_stem(f'{Path(path).stem}_{name}')}"


async def _listening(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def _welcome(blog: Server, beside: Beside, url: str, data: Path, password: str) -> str:
    lines = [
        *await _blog(blog, url),
        *await _shop(beside.shop, f"{url}/shop", data),
        *await _saas(beside.saas, f"{url}/saas"),
        f"The panels are at {url}/admin, {url}/shop/admin and {url}/saas/admin; sign in as {SUPERUSER}.",
        f"The password of all these accounts is {password}. It was made for this machine, and is kept in",
        f"{data} with the secrets that sign tokens.",
        "Ctrl-C stops it; the data stays.",
    ]
    return "\n".join(lines).replace("PASSWORD", password)


def _block(title: str, lines: list[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines), ""]


def _sign_in(url: str, variable: str, email: str) -> str:
    body = f'{{"email": "{email}", "password": "PASSWORD"}}'
    return f"{variable}=$(curl -s {url}/api/auth/login {SEND} '{body}' | {TOKEN})"


async def _blog(blog: Server, url: str) -> list[str]:
    from examples.blog.app import Post, User

    users = await blog.db(User).list(limit=1)
    posts = await blog.db(Post).list(limit=1)
    lines = [
        f"curl '{url}/api/posts?filter=status:eq:published&sort=title:asc&limit=3'",
        f"curl '{url}/api/users?sort=name:asc'",
    ]
    if users:
        body = f'{{"title": "Hello", "body": "From curl", "user_id": "{users[0].id}"}}'
        lines.append(f"curl -X POST {url}/api/posts {SEND} '{body}'")
    if posts:
        lines.append(f'curl -X PATCH {url}/api/posts/{posts[0].id} {SEND} \'{{"title": "Changed"}}\'')
    lines.append(f'curl -X POST {url}/api/posts {SEND} \'{{"status": "weekly"}}\'   # 422, and why')
    return _block(f"The blog is at {url}/api, open to all; its reference is at {url}/docs.", lines)


async def _shop(shop: Server, url: str, data: Path) -> list[str]:
    """What there is to try about accounts, files, history, durable work and events."""
    from examples.orders.models import Product
    from examples.orders.sample_data import ADMIN, CUSTOMER, PICTURE

    [tea] = await shop.db(Product).list({"name": "Tea"})
    ada, admin = '-H "Authorization: Bearer $ADA"', '-H "Authorization: Bearer $ADMIN"'
    place, last = f"curl -X POST {url}/api/orders/place {SEND}", "sort=created_at:desc&limit=1"
    product, orders = f"{url}/api/products/{tea.id}", f"{url}/api/orders"
    lines = [
        f"curl '{url}/api/products?sort=price:asc'   # open to all",
        f"curl -I {product}/picture   # a browser shows it",
        f"""{place} '{{"product_id": "{tea.id}"}}'   # 401: writes need an account""",
        _sign_in(url, "ADA", CUSTOMER),
        f"""{place} '{{"product_id": "{tea.id}"}}' {ada}""",
        f"curl '{url}/api/receipts?{last}' {ada}   # the receipt; it was mailed to this terminal",
        f"curl '{url}/api/shipments?{last}' {ada}   # the warehouse knows",
        f"curl '{url}/api/workflow_run?{last}' {ada}   # the run, shown to whose it is",
        f"ORDER=$(curl -s '{orders}?{last}' {ada} | {ID})",
        f"curl {orders}/$ORDER/history {ada}   # placed by ada, shipped by the warehouse",
        f'curl "{orders}?as_of=$(date -u +%FT%TZ)" {ada}   # the orders as they were at any moment',
        f"""{place} '{{"product_id": "{tea.id}", "fail": true}}' {ada}   # 409, and nothing of it is left""",
        f"curl -X DELETE {product} {ada}   # 403: for admins",
        _sign_in(url, "ADMIN", ADMIN),
        f"curl '{url}/api/outbox_event?{last}&filter=kind:eq:order.placed' {admin}   # to the warehouse",
        f"curl '{url}/api/event_log?sort=position:desc&limit=3' {admin}   # the events of what happened",
        f"curl '{url}/api/event_group' {admin}   # who takes them; the group `shelf` counts products down",
        f"curl -X PATCH {product} -F price=4.80 -F 'picture=@{PICTURE}' {admin}   # a form with a file",
        f"curl '{url}/api/audit_log?sort=timestamp:desc&limit=1' {admin}   # who changed the price",
        f"""curl -X POST {url}/api/users {SEND} '{{"email": "you", "password": "1234"}}'   # 422, and why""",
    ]
    lines += _webhook(url, ada, f"""{place} '{{"product_id": "{tea.id}"}}' {ada}""")
    lines += [
        f"{_environment(shop, data)} {MANIFLEX} events groups examples.orders.app:server",
        f"Groups, the feed and webhooks with their deliveries: {url}/admin/-/operations/events",
    ]
    title = f"The shop is at {url}/api; its reference is at {url}/docs. Accounts: {CUSTOMER}, {ADMIN}."
    return _block(title, lines)


def _webhook(url: str, ada: str, place: str) -> list[str]:
    """How a program of Ada's is told of her orders."""
    endpoint = f'{{"url": "http://{HOST}:{RECEIVER_PORT}/api/hooks", "patterns": ["order.*"]}}'
    return [
        f"SECRET=$(curl -s -X POST {url}/api/webhook_endpoints {SEND} '{endpoint}' {ada} | {SECRET})",
        f"WEBHOOK_SECRET=$SECRET {MANIFLEX} run examples.orders.receiver:server --port {RECEIVER_PORT} &",
        f"{place}   # the program prints what it is told, and checks who says so",
        f"curl '{url}/api/webhook_deliveries?sort=created_at:desc&limit=1' {ada}   # what it answered",
    ]


def _environment(shop: Server, data: Path) -> str:
    """The variables by which a command finds the database of the shop."""
    schema = f" DB_SCHEMA={shop.config.schema}" if shop.config.schema else ""
    return f"SHOP_DATA={data} DB_WRITE_URL={shop.config.database}{schema}"


async def _saas(saas: Server, url: str) -> list[str]:
    """What there is to try about tenants."""
    from examples.saas.models import Member, Organization
    from examples.saas.sample_data import MEMBERS

    [alice] = await saas.db(Member).list({"email": "alice@acme.example"})
    [globex] = await saas.db(Organization).list({"name": "Globex"}, limit=1)
    as_alice, as_carol = '-H "Authorization: Bearer $ALICE"', '-H "Authorization: Bearer $CAROL"'
    project = f'"name": "Moon", "owner_id": "{alice.id}"'
    create = f"curl -X POST {url}/api/projects {SEND}"
    lines = [
        _sign_in(url, "ALICE", "alice@acme.example"),
        _sign_in(url, "CAROL", "carol@globex.example"),
        f"curl '{url}/api/organizations?include=members,projects' {as_alice}",
        f"curl '{url}/api/projects?filter=owner_id:eq:{alice.id}' {as_carol}   # another tenant's: none",
        f"""{create} '{{{project}, "organization_id": "{globex.id}"}}' {as_alice}   # 403 TENANT_MISMATCH""",
        f"""{create} '{{{project}}}' {as_alice}   # the plan has room for three; then 402 PROJECT_LIMIT""",
    ]
    accounts = ", ".join(email for members in MEMBERS.values() for email in members)
    title = (
        f"The service for companies is at {url}/api; its reference is at {url}/docs. Accounts: {accounts}."
    )
    return _block(title, lines)


if __name__ == "__main__":
    sys.exit(main())
