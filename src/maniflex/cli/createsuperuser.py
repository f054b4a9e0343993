"""`maniflex createsuperuser module:server`: make a person who may enter the panel."""

from __future__ import annotations

import sys

import click

from maniflex.admin.superusers import ROLE
from maniflex.app.server import Server
from maniflex.cli.process import run_once
from maniflex.cli.target import load_sealed

_target = click.argument("target", metavar="MODULE:SERVER")


@click.command(epilog="Example: maniflex createsuperuser app:server --email ada@example.org")
@_target
@click.option(
    "--email", default="", help="The email address to sign in with; asked for when it is not given."
)
@click.option("--role", "roles", multiple=True, help="A role; may be repeated. Default: superuser.")
@click.option("--tenant", default=None, help="The tenant that the person is bound to.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
def createsuperuser(
    target: str, email: str, roles: tuple[str, ...], tenant: str | None, password_stdin: bool
) -> None:
    """Make a person who may enter the panel."""
    server = load_with_panel(target)
    email = email or click.prompt("Email")
    password = read_password(password_stdin)

    async def create() -> str:
        user = await server.superusers.create(email, password, roles=roles or (ROLE,), tenant_id=tenant)
        return user.email

    click.echo(f"{run_once(server, create)} may now sign in at {server.panel_path}")


def load_with_panel(target: str) -> Server:
    """The server, which has a panel that superusers sign in to."""
    server = load_sealed(target)
    if not server.panel_path:
        raise click.ClickException("the server has no panel; declare it with server.admin()")
    return server


def read_password(from_stdin: bool) -> str:
    """A password: of standard input, or asked for twice without showing it."""
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    return password
