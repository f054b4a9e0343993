"""`maniflex run module:server`: serve it."""

from __future__ import annotations

import os

import click
import uvicorn

from maniflex._logging import logging_config
from maniflex.app.server import Server
from maniflex.cli.process import end_process, freeze_objects
from maniflex.cli.target import load
from maniflex.errors import ManiflexError
from maniflex.http.serve import bind, uvicorn_settings

IDLE = "_MANIFLEX_IDLE_TARGET"


@click.command()
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--reload", is_flag=True, help="Start again when a source file changes.")
@click.option(
    "--no-work", is_flag=True, help="Leave runs, schedules, messages and sweeps to other processes."
)
def run(target: str, host: str | None, port: int | None, workers: int, reload: bool, no_work: bool) -> None:
    """Serve the server until it is interrupted."""
    server = load(target)
    if no_work:
        server.config = server.config.with_(background=False)
    config = server.config.with_(
        host=host or server.config.host, port=server.config.port if port is None else port
    )
    try:
        server.seal()
        if workers == 1 and not reload:
            freeze_objects()
            server.run(host=config.host, port=config.port)
            end_process()
            return
        bind(config.host, config.port).close()
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    name = target if ":" in target else f"{target}:server"
    settings = {**uvicorn_settings(config), "log_config": logging_config(config)}
    if no_work:
        os.environ[IDLE] = name  # the processes uvicorn starts know nothing else of this one
        name, settings["factory"] = f"{__name__}:idle", True
    uvicorn.run(name, **settings, workers=workers if not reload else None, reload=reload, app_dir=".")


def idle() -> Server:
    """The server of a process that uvicorn starts, without its work."""
    server = load(os.environ[IDLE])
    server.config = server.config.with_(background=False)
    return server
