"""The command line: one command of `maniflex` for each file here, such as `maniflex run module:server`."""

from __future__ import annotations

import click

from maniflex.cli.check import check
from maniflex.cli.drain import drain
from maniflex.cli.files import files
from maniflex.cli.openapi import openapi
from maniflex.cli.routes import routes
from maniflex.cli.run import run
from maniflex.cli.runs import runs
from maniflex.cli.scheduler import scheduler
from maniflex.cli.sweep import sweep
from maniflex.cli.worker import worker


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="maniflex", prog_name="maniflex")
def main() -> None:
    """Typed classes in; a REST API and a durable background engine out."""


for command in (run, worker, scheduler, sweep, drain, runs, files, routes, check, openapi):
    main.add_command(command)
