"""`maniflex new NAME`: a project that starts, passes its tests and can be changed. Needs no network."""

from __future__ import annotations

import keyword
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from maniflex._setting_variables import ENVIRONMENT, UNITS
from maniflex.cli.project_files import DATABASES, TEMPLATES, Project

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")


@click.command(epilog="Example: maniflex new bookstore --template saas --database postgres")
@click.argument("name")
@click.option(
    "--template", type=click.Choice(TEMPLATES), default="app", show_default=True, help="What to begin with."
)
@click.option(
    "--database", type=click.Choice(DATABASES), default="sqlite", show_default=True, help="Where data is."
)
@click.option("--no-admin", is_flag=True, help="Leave the panel out.")
@click.option(
    "--domains", is_flag=True, help="One directory for each domain in the place of one for each kind."
)
@click.option("--docker", is_flag=True, help="Also files for a container.")
@click.option("--git", "with_git", is_flag=True, help="Make it a git repository with a first commit.")
def new(
    name: str, template: str, database: str, no_admin: bool, domains: bool, docker: bool, with_git: bool
) -> None:
    """Make the directory NAME with a project in it: code, tests, settings and a README to type."""
    directory = Path(name)
    _check(directory, template, domains, with_git)
    project = Project(directory.name, template, database, domains, docker, admin=not no_admin)
    contents = project.files()
    for path, content in contents.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content, "utf-8")
    if template != "minimal":
        _write_migration(directory)
    if with_git:
        _commit(directory)
    click.echo(f"{directory}: {len(contents)} files. Next:")
    click.echo(f"  cd {directory}")
    if database == "postgres":
        click.echo(f"  createdb {project.package}")
    if template != "minimal":
        click.echo("  maniflex migrate up app:server")
    click.echo("  maniflex run app:server")


def _write_migration(directory: Path) -> None:
    """Write the first file of migrations; files fit both databases, so a scratch SQLite file will do."""
    with tempfile.TemporaryDirectory() as scratch:
        own = {*ENVIRONMENT, *UNITS}  # settings of this shell are none of the new project's
        environment = dict(
            {name: value for name, value in os.environ.items() if name not in own},
            DB_WRITE_URL=f"sqlite:///{scratch}/scratch.db",
            TOKEN_SECRET="no token is signed while a file is written",
        )
        command = [sys.executable, "-m", "maniflex", "migrate", "make", "app:server", "-m", "first"]
        make = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    if make.returncode:
        raise click.ClickException(f"the first migration could not be written: {make.stderr.strip()}")


def _check(directory: Path, template: str, domains: bool, with_git: bool) -> None:
    """Refuse before anything is written."""
    if not _NAME.fullmatch(directory.name):
        raise click.BadParameter(
            "a name begins with a letter and has letters, digits, - and _", param_hint="NAME"
        )
    if keyword.iskeyword(directory.name) or directory.name in {*sys.stdlib_module_names, "maniflex"}:
        raise click.BadParameter(f"Python has a {directory.name} already", param_hint="NAME")
    if template == "minimal" and domains:
        raise click.UsageError("the minimal template has one file; --domains goes with app and saas")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise click.ClickException(f"{directory} is there already and not empty; name another directory")
    if not directory.absolute().parent.is_dir():
        raise click.ClickException(f"there is no directory {directory.absolute().parent}")
    if with_git and shutil.which("git") is None:
        raise click.ClickException("git is not installed; leave --git out, or install it")


def _commit(directory: Path) -> None:
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "Begin"]):
        git = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True)
        if git.returncode:
            raise click.ClickException(f"git {arguments[0]}: {(git.stderr or git.stdout).strip()}")
