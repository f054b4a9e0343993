"""`migrate init --alembic`: the files for people who want Alembic's own command."""

from __future__ import annotations

from pathlib import Path

from maniflex.migrations.errors import MigrationError
from maniflex.migrations.target import MigrationTarget

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
