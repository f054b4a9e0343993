"""Alembic's own command (`alembic upgrade head`) on the files of an application: what its `env.py` calls.

Alembic chooses the steps; they are applied here, with everything that `maniflex migrate` sees to.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from maniflex.db.current import reading
from maniflex.schema.apply import Migrator
from maniflex.schema.read import read_heads
from maniflex.schema.steps import MigrationListener
from maniflex.schema.target import MigrationError, MigrationTarget


def run_alembic_command(context: Any, server: Any, application: str, database: str) -> None:
    """Run what Alembic's command asks for on one database of the server."""
    if context.is_offline_mode():
        raise MigrationError("use `maniflex migrate up --sql`, which knows both databases")

    async def main() -> None:
        async with server.migration_targets(application) as targets:
            await _run(context, next(target for target in targets if target.name == database))

    asyncio.run(main())


async def _run(context: Any, target: MigrationTarget) -> None:
    heads = await read_heads(reading(target.adapter)) or ()
    steps = list(context._proxy.context_opts["fn"](heads, None))
    if not steps:
        return
    migrator = Migrator(target, MigrationListener(on_file=lambda file, seconds: print(file.title)))
    last = steps[-1]
    if not hasattr(last, "revision"):
        raise MigrationError(f"use {target.command('stamp @ head')}")
    if last.is_upgrade:
        await migrator.up(str(last.revision.revision))
    else:
        down: Any = last.revision.down_revision
        await migrator.down("base" if down is None else str(down))


# `migrate init --alembic`: the files for people who want Alembic's own command.


_INI = """[alembic]
script_location = {directory}
version_locations = {versions}
prepend_sys_path = .
"""
_ENV = '''"""Alembic's own command on {application}; `maniflex migrate` does the same and more."""

from alembic import context
from {module} import {variable}
from maniflex.migrations.alembic_command import run_alembic_command

run_alembic_command(context, {variable}, "{application}", "{database}")
'''


def write_alembic_files(target: MigrationTarget) -> list[Path]:
    """Write alembic.ini and env.py, unless they are there."""
    directory = target.files.directory
    ini, env = directory.parent / "alembic.ini", directory / "env.py"
    for path in (ini, env):
        if path.exists():
            raise MigrationError(f"{path} is there already")
    ini.write_text(_INI.format(directory=directory.name, versions=f"{directory.name}/versions"), "utf-8")
    module, _, variable = target.files.application.partition(":")
    text = _ENV.format(
        application=target.files.application,
        module=module,
        variable=variable or "server",
        database=target.name,
    )
    env.write_text(text, "utf-8")
    return [ini, env]
