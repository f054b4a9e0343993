"""The command line: `maniflex run | routes | check | openapi module:server`."""

from __future__ import annotations

import click

from maniflex.cli.check import check
from maniflex.cli.openapi import openapi
from maniflex.cli.routes import routes
from maniflex.cli.run import run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="maniflex", prog_name="maniflex")
def main() -> None:
    """Typed classes in; a REST API and a durable background engine out."""


for command in (run, routes, check, openapi):
    main.add_command(command)
