"""`maniflex new NAME`: a project that starts, passes its tests and can be changed. Needs no network."""

from __future__ import annotations

import keyword
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from maniflex.config import SETTINGS
from maniflex.encryption.local import EnvKeyProvider, generate_key

# The files of a new project: their paths and contents, for a template and its options.
#
# The contents are Jinja2 files in `templates/`; here is where each of them goes.


TEMPLATES = ("minimal", "app", "saas")
DATABASES = ("sqlite", "postgres")
COMMON = {
    "pyproject.toml": "common/pyproject.toml",
    "README.md": "common/README.md",
    "AGENTS.md": "common/AGENTS.md",
    ".env.example": "common/env.example",
    ".gitignore": "common/gitignore",
}
DOCKER = {
    "Dockerfile": "docker/Dockerfile",
    ".dockerignore": "docker/dockerignore",
    "compose.yaml": "docker/compose.yaml",
}
DOCKER_POSTGRES = {"database.sql": "docker/database.sql"}
# Path in the project → file of the template; "" is an empty file.
MINIMAL = {"app.py": "minimal/app.py", "tests/test_app.py": "minimal/tests_test_app.py"}
WIRED = {"config.py": "common/config.py", "tests/__init__.py": ""}
APP_TESTS = {
    f"tests/{name}.py": f"app/{name}.py" for name in ("conftest", "test_user", "test_note", "test_leaks")
}
APP = {
    "app.py": "app/app.py",
    "models/__init__.py": "app/models_init.py",
    "models/user.py": "app/user.py",
    "models/note.py": "app/note.py",
    "middleware/__init__.py": "",
    "middleware/register.py": "app/middleware_register.py",
    "middleware/accounts.py": "app/accounts.py",
    "middleware/owners.py": "app/owners.py",
    "actions/__init__.py": "app/actions_init.py",
    "actions/reminders.py": "app/reminders_action.py",
    "work/__init__.py": "app/work_init.py",
    "work/reminders.py": "app/reminders_work.py",
    "internal/__init__.py": "",
    "internal/addresses.py": "common/addresses.py",
    "static/.gitkeep": "",
}
APP_DOMAINS = {
    "app.py": "app/app.py",
    "domains/__init__.py": "app/domains_init.py",
    "domains/accounts/__init__.py": "",
    "domains/accounts/addresses.py": "common/addresses.py",
    "domains/accounts/models.py": "app/user.py",
    "domains/accounts/middleware.py": "app/accounts.py",
    "domains/accounts/register.py": "app/accounts_register.py",
    "domains/notes/__init__.py": "",
    "domains/notes/models.py": "app/note.py",
    "domains/notes/middleware.py": "app/owners.py",
    "domains/notes/actions.py": "app/reminders_action.py",
    "domains/notes/work.py": "app/reminders_work.py",
    "domains/notes/register.py": "app/notes_register.py",
}
SAAS_TESTS = {
    f"tests/{name}.py": f"saas/{name}.py"
    for name in ("conftest", "test_organization", "test_member", "test_project", "test_leaks")
}
SAAS = {
    "app.py": "saas/app.py",
    "models/__init__.py": "saas/models_init.py",
    "models/organization.py": "saas/organization.py",
    "models/member.py": "saas/member.py",
    "models/invitation.py": "saas/invitation.py",
    "models/project.py": "saas/project.py",
    "middleware/__init__.py": "",
    "middleware/register.py": "saas/middleware_register.py",
    "middleware/accounts.py": "saas/accounts.py",
    "middleware/tenancy.py": "saas/tenancy.py",
    "actions/__init__.py": "saas/actions_init.py",
    "actions/archiving.py": "saas/archive_action.py",
    "actions/invitations.py": "saas/invitations.py",
    "work/__init__.py": "saas/work_init.py",
    "work/telling.py": "saas/tell_work.py",
    "internal/__init__.py": "",
    "internal/addresses.py": "common/addresses.py",
    "static/.gitkeep": "",
}
SAAS_DOMAINS = {
    "app.py": "saas/app.py",
    "domains/__init__.py": "saas/domains_init.py",
    "domains/accounts/__init__.py": "",
    "domains/accounts/addresses.py": "common/addresses.py",
    "domains/accounts/models.py": "saas/accounts_models.py",
    "domains/accounts/actions.py": "saas/invitations.py",
    "domains/accounts/middleware.py": "saas/accounts.py",
    "domains/accounts/tenancy.py": "saas/tenancy.py",
    "domains/accounts/register.py": "saas/accounts_register.py",
    "domains/projects/__init__.py": "",
    "domains/projects/models.py": "saas/project.py",
    "domains/projects/actions.py": "saas/archive_action.py",
    "domains/projects/work.py": "saas/tell_work.py",
    "domains/projects/register.py": "saas/projects_register.py",
}
LAYOUTS: Mapping[tuple[str, bool], Mapping[str, str]] = {
    ("app", False): APP | APP_TESTS | WIRED,
    ("app", True): APP_DOMAINS | APP_TESTS | WIRED,
    ("saas", False): SAAS | SAAS_TESTS | WIRED,
    ("saas", True): SAAS_DOMAINS | SAAS_TESTS | WIRED,
}
MODULES = {  # of a flat layout, and of one by domains
    "address_module": ("internal.addresses", "domains.accounts.addresses"),
    "user_module": ("models.user", "domains.accounts.models"),
    "note_module": ("models.note", "domains.notes.models"),
    "project_module": ("models.project", "domains.projects.models"),
}
WORK_MODULES = {
    ("app", False): "work.reminders",
    ("app", True): "domains.notes.work",
    ("saas", False): "work.telling",
    ("saas", True): "domains.projects.work",
}


@dataclass(frozen=True, slots=True)
class Project:
    """The wishes for a new project."""

    name: str
    template: str = "app"
    database: str = "sqlite"
    domains: bool = False
    docker: bool = False
    admin: bool = True

    @property
    def package(self) -> str:
        """The name as databases and files take it."""
        return self.name.replace("-", "_").lower()

    def files(self) -> dict[str, str]:
        """Path → content of every file."""
        layout = MINIMAL if self.template == "minimal" else LAYOUTS[self.template, self.domains]
        places = {**COMMON, **layout}
        if self.docker:
            places |= DOCKER
            if self.database == "postgres":
                places |= DOCKER_POSTGRES
        environment, values = _environment(), self._values()
        return {
            path: environment.get_template(f"{source}.jinja").render(values) if source else ""
            for path, source in places.items()
        }

    @property
    def extras(self) -> str:
        """The extras of maniflex that it depends on."""
        extras = ["auth"] * (self.template != "minimal") + ["postgres"] * (self.database == "postgres")
        extras += ["encryption", "export"] * (self.template == "saas")
        return ",".join([*extras, "cli"])

    def _values(self) -> dict[str, Any]:
        urls = {
            "sqlite": f"sqlite:///{self.package}.db",
            "postgres": f"postgresql://localhost/{self.package}",
        }
        return {
            "name": self.name,
            "package": self.package,
            "title": self.name.replace("-", " ").replace("_", " ").capitalize(),
            "template": self.template,
            "database": self.database,
            "database_url": urls[self.database],
            "extras": self.extras,
            "domains": self.domains,
            "docker": self.docker,
            "admin": self.admin and self.template != "minimal",
            "work_module": WORK_MODULES.get((self.template, self.domains), ""),
            **{name: pair[self.domains] for name, pair in MODULES.items()},
        }


def _environment() -> Any:
    import jinja2

    def read(name: str) -> str:
        return (files("maniflex.cli") / "templates" / name).read_text("utf-8")

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(read),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )


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
    _check_packages(project)
    contents = project.files()
    for path, content in contents.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content, "utf-8")
    if template != "minimal":
        _write_migration(directory)
    if template == "saas":
        _write_key(directory)
    if with_git:
        _commit(directory)
    click.echo(f"{directory}: {len(contents)} files. Next:")
    click.echo(f"  cd {directory}")
    click.echo("  pip install -e '.[dev]'")
    if database == "postgres":
        click.echo(f"  createdb {project.package}")
    if template != "minimal":
        click.echo("  maniflex migrate up app:server")
    click.echo("  maniflex run app:server")


def _write_migration(directory: Path) -> None:
    """Write the first file of migrations; files fit both databases, so a scratch SQLite file will do."""
    with tempfile.TemporaryDirectory() as scratch:
        own = {
            name for one in SETTINGS.values() for name in one.variables
        }  # settings of this shell are none of the new project's
        environment = dict(
            {name: value for name, value in os.environ.items() if name not in own},
            DB_WRITE_URL=f"sqlite:///{scratch}/scratch.db",
            TOKEN_SECRET="no token is signed while a file is written",
        )
        command = [sys.executable, "-m", "maniflex", "migrate", "make", "app:server", "-m", "first"]
        make = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    if make.returncode:
        raise click.ClickException(f"the first migration could not be written: {make.stderr.strip()}")


def _write_key(directory: Path) -> None:
    """Write a new key where this machine alone has it: git and images leave `.env` out."""
    descriptor = os.open(directory / ".env", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write("# Opens what is stored encrypted; keep a copy. `.env.example` has the other settings.\n")
        file.write(f"{EnvKeyProvider().variable_of('default')}={generate_key()}\n")


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


def _check_packages(project: Project) -> None:
    """Refuse a template whose code cannot be read here: its first migration is made of it."""
    if project.template != "minimal" and not all(map(find_spec, _PACKAGES)):
        raise click.ClickException(
            f"the template {project.template} needs packages that are not installed here; nothing was made."
            f' Type: pip install "maniflex[{project.extras}]", and this once more'
        )


_PACKAGES = ("jwt", "cryptography", "argon2")  # of tokens and passwords


def _commit(directory: Path) -> None:
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "Begin"]):
        git = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True)
        if git.returncode:
            raise click.ClickException(f"git {arguments[0]}: {(git.stderr or git.stdout).strip()}")
