"""The command line: what `maniflex` can be told, such as `maniflex run module:server`."""

from __future__ import annotations

import click

from maniflex.cli.data import copy, drain, export_, files, import_, sweep
from maniflex.cli.doctor import doctor
from maniflex.cli.erase import erase, subject
from maniflex.cli.events import events
from maniflex.cli.keys import keys
from maniflex.cli.migrate import migrate
from maniflex.cli.new import new
from maniflex.cli.routes import check, completion, config, openapi, routes, version
from maniflex.cli.run import run
from maniflex.cli.shell import backup, shell
from maniflex.cli.superuser import createsuperuser, superuser
from maniflex.cli.webhooks import webhooks
from maniflex.cli.work import outbox, partition, processes, runs, scheduler, schedules, top, worker


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="maniflex", prog_name="maniflex")
def main() -> None:
    """Typed classes in; a REST API and a durable background engine out."""


COMMANDS: tuple[click.Command, ...] = (
    new,
    run,
    worker,
    scheduler,
    sweep,
    erase,
    subject,
    drain,
    runs,
    schedules,
    outbox,
    events,
    webhooks,
    processes,
    top,
    copy,
    files,
    keys,
    export_,
    import_,
    routes,
    check,
    doctor,
    migrate,
    partition,
    openapi,
    config,
    shell,
    backup,
    createsuperuser,
    superuser,
    completion,
    version,
)
for command in COMMANDS:
    main.add_command(command)
