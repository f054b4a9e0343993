"""`maniflex run module:server`: serve it."""

from __future__ import annotations

import click
import uvicorn

from maniflex._logging import logging_config
from maniflex.cli.target import load
from maniflex.errors import ManiflexError
from maniflex.http.serve import bind, uvicorn_settings


@click.command()
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--reload", is_flag=True, help="Start again when a source file changes.")
def run(target: str, host: str | None, port: int | None, workers: int, reload: bool) -> None:
    """Serve the server until it is interrupted."""
    server = load(target)
    config = server.config.with_(
        host=host or server.config.host, port=server.config.port if port is None else port
    )
    try:
        server.seal()
        if workers == 1 and not reload:
            server.run(host=config.host, port=config.port)
            return
        bind(config.host, config.port).close()
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    name = target if ":" in target else f"{target}:server"
    settings = {**uvicorn_settings(config), "log_config": logging_config(config)}
    uvicorn.run(name, **settings, workers=workers if not reload else None, reload=reload, app_dir=".")
