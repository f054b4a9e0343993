"""`maniflex run module:server`: serve it."""

from __future__ import annotations

import logging
import os

import click

from maniflex._logging import configure_logging, logging_config
from maniflex.app.server import Server
from maniflex.cli.process import freeze_objects
from maniflex.cli.reload import serve_and_reload
from maniflex.cli.supervisor import serve_by_processes
from maniflex.cli.target import load
from maniflex.errors import ManiflexError
from maniflex.http.serve import bind, uvicorn_settings

IDLE = "_MANIFLEX_IDLE_TARGET"
log = logging.getLogger("maniflex")
STARTS_WITHIN = 60  # seconds; a process that is silent for longer is ended and started anew


@click.command(epilog="Example: maniflex run app:server --port 9000 --reload")
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--reload", is_flag=True, help="Start again when code, a template or .env changes.")
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
    if reload and workers > 1:
        raise click.UsageError("--reload serves with one process; leave out --workers")
    if config.metrics_enabled and config.metrics_port and (workers > 1 or reload):
        raise click.UsageError(
            "metrics_port is one port for one process; leave it out, --workers or --reload"
        )
    try:
        server.seal()
        if workers == 1 and not reload:
            freeze_objects()
            server.run(host=config.host, port=config.port)
            return
        if reload:
            with bind(config.host, config.port) as listener:
                serve_and_reload(target, listener, ["--no-work"] if no_work else [])
            return
        bind(config.host, config.port).close()
    except ManiflexError as error:
        raise click.ClickException(str(error)) from None
    name = target if ":" in target else f"{target}:server"
    settings = {**uvicorn_settings(config), "log_config": logging_config(config)}
    if no_work:
        os.environ[IDLE] = name  # the processes uvicorn starts know nothing else of this one
        name, settings["factory"] = f"{__name__}:idle", True
    configure_logging(config)
    for place, path in server.places:
        log.info("%s at http://%s:%s%s", place, config.host, config.port, path)
    serve_by_processes(name, workers, **settings, timeout_worker_healthcheck=STARTS_WITHIN)


def idle() -> Server:
    """The server of a process that uvicorn starts, without its work."""
    server = load(os.environ[IDLE])
    server.config = server.config.with_(background=False)
    return server
