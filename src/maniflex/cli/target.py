"""`module:server` → the server it names."""

from __future__ import annotations

import importlib
import os
import sys
import traceback

import click

from maniflex._names import did_you_mean
from maniflex.app.server import Server
from maniflex.errors import ManiflexError


class NoSuchTarget(click.ClickException):
    """What was named is not there: the command was used wrongly."""

    exit_code = 2


def load_sealed(target: str) -> Server:
    """The server, its whole declaration checked."""
    server = load(target)
    try:
        server.seal()
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    return server


def load(target: str) -> Server:
    """Import the module and give its server, or say in one sentence why not."""
    module_name, _, attribute = target.partition(":")
    if not module_name or module_name.startswith("."):
        raise click.BadParameter("write it as module:server, such as app:server")
    attribute = attribute or "server"
    if sys.path[:1] != [os.getcwd()]:  # an installed project may be on the path, behind others of that name
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not f"{module_name}.".startswith(f"{error.name}."):
            raise _import_failure(module_name, error) from None
        raise NoSuchTarget(f"there is no module {module_name!r} here") from None
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    except SystemExit as error:  # of a script that runs when it is imported; even 0 would look like success
        raise click.ClickException(
            f"{module_name} ended the process while it was imported (exit code {error.code}); what it runs"
            ' belongs behind `if __name__ == "__main__":`'
        ) from None
    except Exception as error:
        raise _import_failure(module_name, error) from None
    server = getattr(module, attribute, None)
    if not isinstance(server, Server):
        servers = [name for name, value in vars(module).items() if isinstance(value, Server)]
        hint = did_you_mean(attribute, servers) or (f"; it has {', '.join(servers)}" if servers else "")
        raise NoSuchTarget(f"{module_name} has no server called {attribute!r}{hint}")
    return server


def _import_failure(module_name: str, error: Exception) -> click.ClickException:
    """What is wrong with a module, by the lines of the application that led there and no others."""
    place = error.__traceback__
    while place is not None and _is_machinery(place.tb_frame.f_code.co_filename):
        place = place.tb_next
    lines = "".join(traceback.format_exception(type(error), error, place))
    return click.ClickException(f"{module_name} could not be imported\n{lines.rstrip()}")


def _is_machinery(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen importlib") or "/importlib/" in filename
