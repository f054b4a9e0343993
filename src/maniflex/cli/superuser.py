"""`maniflex superuser list | disable | enable | password | logout`: look after the people of the panel."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Awaitable, Callable, Sequence

import click

from maniflex.admin.people import ROLE, Sessions
from maniflex.admin.tables import AdminUser
from maniflex.app.server import Server
from maniflex.cli.process import load_sealed, run_once
from maniflex.errors import DeclarationError

# `maniflex createsuperuser module:server`: make a person who may enter the panel.


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
    roles = roles or (ROLE,)
    _refuse_who_cannot_enter(server, roles)
    email = email or click.prompt("Email")
    password = read_password(password_stdin)

    async def create() -> str:
        user = await server.superusers.create(email, password, roles=roles, tenant_id=tenant)
        return user.email

    click.echo(f"{run_once(server, create)} may now sign in at {server.panel_path}")


def _refuse_who_cannot_enter(server: Server, roles: Sequence[str]) -> None:
    """Make nobody for whom the sign-in of the panel would stay closed."""
    panel = server.declared_panel
    if panel is not None and panel.auth != "superuser":
        raise click.ClickException(
            "superusers cannot sign in to this panel: server.admin(auth=...) asks the application who"
            " somebody is, so make an account there"
        )
    if panel is not None and panel.role is not None and panel.role not in roles:
        raise click.ClickException(
            f"the role {panel.role} is needed to enter this panel; add --role {panel.role}"
        )


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


_email = click.argument("email", metavar="EMAIL")


@click.group()
def superuser() -> None:
    """List, disable, enable and sign out superusers, and set their passwords."""


@superuser.command(name="list", epilog="Example: maniflex superuser list app:server")
@_target
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_superusers(target: str, as_json: bool) -> None:
    """Print all superusers."""
    server = load_with_panel(target)
    users = run_once(server, lambda: server.superusers.list())
    if as_json:
        click.echo(json_module.dumps([_row(user) for user in users]))
        return
    for user in users:
        state = "active" if user.active else "disabled"
        last = "never" if user.last_login_at is None else f"{user.last_login_at:%Y-%m-%d %H:%M}"
        click.echo(f"{user.email}  {state}  {' '.join(user.roles)}  last login {last}")
    if not users:
        click.echo("there is no superuser; maniflex createsuperuser makes one")


def _row(user: AdminUser) -> dict[str, object]:
    return {
        "email": user.email,
        "roles": list(user.roles),
        "tenant_id": user.tenant_id,
        "active": user.active,
        "last_login_at": None if user.last_login_at is None else user.last_login_at.isoformat(),
    }


@superuser.command(epilog="Example: maniflex superuser disable app:server ada@example.com")
@_target
@_email
def disable(target: str, email: str) -> None:
    """Let a superuser sign in no more, and end its sessions."""

    async def work(server: Server, user: AdminUser) -> str:
        await server.superusers.set_active(user, False)
        return f"{user.email} is disabled; {await _end_sessions(server, user)} sessions ended"

    _with_user(target, email, work)


@superuser.command(epilog="Example: maniflex superuser enable app:server ada@example.com")
@_target
@_email
def enable(target: str, email: str) -> None:
    """Let a superuser sign in again."""

    async def work(server: Server, user: AdminUser) -> str:
        await server.superusers.set_active(user, True)
        return f"{user.email} may sign in"

    _with_user(target, email, work)


@superuser.command(epilog="Example: maniflex superuser password app:server ada@example.com")
@_target
@_email
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
def password(target: str, email: str, password_stdin: bool) -> None:
    """Set a password, and end the sessions."""
    load_with_panel(target)  # what is wrong with it is told before the password is asked for
    text = read_password(password_stdin)

    async def work(server: Server, user: AdminUser) -> str:
        await server.superusers.set_password(user, text)
        return f"{user.email} has a new password; {await _end_sessions(server, user)} sessions ended"

    _with_user(target, email, work)


@superuser.command(epilog="Example: maniflex superuser logout app:server ada@example.com")
@_target
@_email
def logout(target: str, email: str) -> None:
    """End all sessions of a superuser."""

    async def work(server: Server, user: AdminUser) -> str:
        return f"{await _end_sessions(server, user)} sessions of {user.email} ended"

    _with_user(target, email, work)


async def _end_sessions(server: Server, user: AdminUser) -> int:
    admin = server.declared_panel
    assert admin is not None
    sessions = Sessions(server._seal().runtime, admin.session_lifetime, admin.idle_timeout)
    return await sessions.close_all(user.id)


def _with_user(target: str, email: str, work: Callable[[Server, AdminUser], Awaitable[str]]) -> None:
    server = load_with_panel(target)

    async def run() -> str:
        user = await server.superusers.find(email)
        if user is None:
            raise DeclarationError(f"there is no superuser {email}; maniflex superuser list prints them")
        return await work(server, user)

    click.echo(run_once(server, run))
