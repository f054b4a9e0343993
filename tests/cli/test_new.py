"""`maniflex new`: the project it makes passes its checks and tests, starts, and its README can be typed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml  # type: ignore[import-untyped]  # has no types
from click.testing import CliRunner, Result

from maniflex.cli import main
from maniflex.cli.new import Project
from tests.kit.postgres import PostgresPool, as_role, execute
from tests.kit.private_postgres import private_postgres
from tests.kit.processes import IMPORTS, MANIFLEX, ROOT, free_port, start_process
from tests.kit.walkthrough import commands, type_all

PROJECTS = [("saas", "--template", "saas", "--database", "postgres", "--domains", "--docker")]
OTHERS = [
    ("minimal", "--template", "minimal"),
    ("app", "--template", "app"),
    ("domains", "--template", "app", "--domains", "--database", "postgres"),
    ("flat", "--template", "saas", "--no-admin"),
    ("container", "--template", "minimal", "--docker", "--database", "postgres"),
]
EVERY_OPTION = [
    ("minimal-" + "-".join(options).replace("--", ""), "--template", "minimal", *options)
    for options in ([], ["--docker"], ["--database", "postgres"], ["--database", "postgres", "--docker"])
] + [
    (f"{template}-{'-'.join(options).replace('--', '')}", "--template", template, *options)
    for template in ("app", "saas")
    for database in ([], ["--database", "postgres"])
    for domains in ([], ["--domains"])
    for rest in (["--docker", "--git"], ["--no-admin"])
    for options in [[*database, *domains, *rest]]
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def new(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["new", *arguments])


@pytest.fixture(scope="session")
def mypy_cache(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    # Kept from one run to the next: mypy compares what it has with the files. Most of it is about libraries.
    cache = getattr(pytestconfig, "cache", None)  # pytest may be told to have none
    return str(cache.mkdir("mypy_of_new_projects") if cache else tmp_path_factory.mktemp("mypy"))


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page shows curl lines")
@pytest.mark.parametrize("options", PROJECTS, ids=lambda options: options[0])
def test_a_new_project_can_be_typed_from_its_readme(
    here: Path, options: tuple[str, ...], mypy_cache: str, new_postgres_url: Callable[[], str]
) -> None:
    _try_project(here, options, mypy_cache, new_postgres_url)


@pytest.mark.long
@pytest.mark.parametrize("options", OTHERS, ids=lambda options: options[0])
def test_so_can_one_with_other_options(
    here: Path, options: tuple[str, ...], mypy_cache: str, new_postgres_url: Callable[[], str]
) -> None:
    _try_project(here, options, mypy_cache, new_postgres_url)


def _try_project(
    here: Path, options: tuple[str, ...], mypy_cache: str, new_postgres_url: Callable[[], str]
) -> None:
    made = new("bookstore", *options[1:])
    assert made.exit_code == 0, made.output
    directory = here / "bookstore"
    environment = {"MYPY_CACHE_DIR": mypy_cache, "HOME": str(here)}
    assert "pip install -e '.[dev]'" in (directory / "README.md").read_text()
    if "postgres" in options:
        environment["DB_WRITE_URL"] = new_postgres_url()

    page = directory / "README.md"
    type_all(page, "Check it", "", directory, **environment)  # fails unless every command ends with 0
    for line in commands(page, "Start it")[:-1]:  # the last one serves
        subprocess.run(["bash", "-c", line], cwd=directory, env=_with_path(environment), check=True)
    port = free_port()
    command: list[str | Path] = [MANIFLEX, "run", "app:server", "--port", str(port)]
    with start_process(command, port, cwd=directory, PYTHONPATH=IMPORTS, **environment) as served:
        served.until_up()
        typed = type_all(page, "Try it", served.url, directory, **environment)
        served.send(signal.SIGINT)
        assert served.ended() == 0
    assert len(typed) >= 3
    assert [str(one) for one in typed if one.status != one.expected] == []
    assert "Traceback" not in served.output


def _with_path(environment: dict[str, str]) -> dict[str, str]:
    search_path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, **environment, "PATH": search_path, "PYTHONPATH": IMPORTS}


@pytest.mark.parametrize("options", [*PROJECTS, *OTHERS], ids=lambda options: options[0])
def test_every_project_is_clean(here: Path, options: tuple[str, ...]) -> None:
    assert new("bookstore", *options[1:]).exit_code == 0
    for command in (["check", "."], ["format", "--check", "."]):
        checked = subprocess.run(
            [Path(sys.executable).with_name("ruff"), *command, "--no-cache"],
            cwd=here / "bookstore",
            capture_output=True,
            text=True,
        )
        assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("options", [*PROJECTS, *OTHERS], ids=lambda options: options[0])
def test_the_doctor_finds_nothing_in_it(here: Path, options: tuple[str, ...]) -> None:
    assert new("bookstore", *options[1:]).exit_code == 0
    directory = here / "bookstore"
    command: list[str | Path] = [MANIFLEX, "doctor", "app:server", "--no-database", "--json"]
    examined = subprocess.run(command, cwd=directory, env=_with_path({}), capture_output=True, text=True)
    codes = {finding["code"] for finding in json.loads(examined.stdout)}
    assert codes == set(), examined.stdout


@pytest.mark.parametrize("options", [*PROJECTS, *OTHERS], ids=lambda options: options[0])
def test_it_may_be_served_to_the_world(here: Path, options: tuple[str, ...]) -> None:
    assert new("bookstore", *options[1:]).exit_code == 0
    # As the README of the minimal one says: it begins with a schema that each start makes.
    settings = {"AUTO_MIGRATE": "false"} if "minimal" in options else {}
    command: list[str | Path] = [MANIFLEX, "check", "app:server", "--production"]
    checked = subprocess.run(
        command, cwd=here / "bookstore", env=_with_path(settings), capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("options", [*PROJECTS, *OTHERS], ids=lambda options: options[0])
def test_a_wheel_of_it_holds_all_of_its_code(here: Path, options: tuple[str, ...]) -> None:
    assert new("bookstore", *options[1:]).exit_code == 0
    directory = here / "bookstore"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(here)]
    subprocess.run(build, cwd=directory, check=True, capture_output=True)
    [wheel] = here.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    written = {str(path.relative_to(directory)) for path in directory.rglob("*.py")}
    assert held == {path for path in written if not path.startswith("tests/")}


@pytest.fixture(scope="session")
def own_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a wheel of this checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return directory


@pytest.fixture
def owned_postgres_url(postgres_pool: PostgresPool) -> Iterator[str]:
    """An empty PostgreSQL database of an ordinary role; the role of the tests is a superuser."""
    database = postgres_pool.take()
    url, role = postgres_pool.url(database), f"owner_of_{database}"
    make = f"CREATE ROLE {role} LOGIN PASSWORD 'own'; ALTER DATABASE {database} OWNER TO {role};"
    asyncio.run(execute(url, f"{make} ALTER SCHEMA public OWNER TO {role}"))
    yield as_role(url, f"{role}:own")
    asyncio.run(execute(url, f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP ROLE {role}"))
    postgres_pool.give_back(database)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("options", EVERY_OPTION, ids=lambda options: options[0])
def test_every_project_stands_in_an_environment_of_its_own(
    here: Path,
    options: tuple[str, ...],
    own_wheel: Path,
    mypy_cache: str,
    owned_postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Installed as its README says into an empty environment, all of its checks pass there."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.com")
    assert new("bookstore", *options[1:]).exit_code == 0
    directory, programs = here / "bookstore", here / "venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", here / "venv"], check=True)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    environment |= {"PATH": f"{programs}:{os.environ['PATH']}", "MYPY_CACHE_DIR": mypy_cache}
    if "postgres" in options:
        environment["DB_WRITE_URL"] = owned_postgres_url

    def run(command: str) -> None:
        done = subprocess.run(
            ["bash", "-c", command], cwd=directory, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"

    run(f"pip install --quiet --find-links {own_wheel} -e '.[dev]'")
    if "minimal" in options:
        environment["AUTO_MIGRATE"] = "false"
        run("maniflex migrate make app:server -m first")
    run("pytest -q")
    run("ruff check . && ruff format --check .")
    run("mypy --strict .")
    run("maniflex migrate up app:server")
    run("maniflex check app:server --production")
    run("maniflex doctor app:server --strict")
    run("pip wheel --quiet --no-deps -w dist . && ls dist/bookstore-*.whl")


def _compose(project: Project) -> dict[str, Any]:
    composed: dict[str, Any] = yaml.safe_load(project.files()["compose.yaml"])
    return composed


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize("template", ["app", "saas"])
def test_a_container_gets_its_secret_its_schema_and_a_volume_it_may_write(
    template: str, database: str
) -> None:
    project = Project("shop", template, database, docker=True)
    contents, services = project.files(), _compose(project)["services"]
    for service in ("migrate", "app"):
        assert services[service]["environment"]["TOKEN_SECRET"].startswith("${TOKEN_SECRET:?")
    assert services["migrate"]["command"] == ["maniflex", "migrate", "up", "app:server"]
    assert services["app"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert "'TOKEN_SECRET=' + secrets.token_urlsafe(32))\" >> .env" in contents["README.md"]
    if database == "sqlite":
        assert services["app"]["volumes"] == services["migrate"]["volumes"] == ["data:/data"]
        lines = contents["Dockerfile"].splitlines()
        # A new volume takes its owner from the directory of the image that it is mounted on.
        assert "mkdir /data && chown app /app /data" in next(line for line in lines if "useradd" in line)


def test_in_a_container_the_application_is_an_ordinary_role_that_owns_its_database(here: Path) -> None:
    assert new("pg-shop", "--database", "postgres", "--docker").exit_code == 0
    directory = here / "pg-shop"
    services = yaml.safe_load((directory / "compose.yaml").read_text())["services"]
    [script] = [mount.split(":")[0] for mount in services["database"]["volumes"] if ".sql:" in mount]
    address = urlsplit(services["app"]["environment"]["DB_WRITE_URL"])
    name, login = address.path.strip("/"), address.netloc.partition("@")[0]
    assert services["database"]["environment"]["POSTGRES_DB"] == name
    with private_postgres() as postgres:
        asyncio.run(postgres.start())
        asyncio.run(execute(postgres.url, f'CREATE DATABASE "{name}"'))
        database = urlsplit(postgres.url)._replace(path=f"/{name}").geturl()
        asyncio.run(execute(database, (directory / script).read_text()))
        environment = _with_path({"DB_WRITE_URL": as_role(database, login)})
        for command in (["migrate", "up", "app:server"], ["doctor", "app:server", "--strict"]):
            done = subprocess.run(
                [MANIFLEX, *command], cwd=directory, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("template", ["minimal", "app"])
def test_its_settings_may_stand_in_a_file(here: Path, template: str) -> None:
    assert new("bookstore", "--template", template).exit_code == 0
    directory = here / "bookstore"
    example = (directory / ".env.example").read_text()
    secret = "TOKEN_SECRET=this secret stands in the file and is long enough"
    (directory / ".env").write_text(
        example.replace("PORT=8080", "PORT=9000")
        .replace("DB_WRITE_URL=sqlite:///bookstore.db", "DB_WRITE_URL=sqlite:///other.db")
        .replace("TOKEN_SECRET=", secret)
    )

    command: list[str | Path] = [MANIFLEX, "config", "app:server", "--changed", "--json"]
    settings = subprocess.run(command, cwd=directory, env=_with_path({}), capture_output=True, text=True)

    rows = {row["setting"]: row for row in json.loads(settings.stdout)}
    assert (rows["port"]["value"], rows["port"]["source"]) == (9000, "variable")
    assert (rows["database"]["value"], rows["database"]["source"]) == ("sqlite:///other.db", "variable")
    assert not (directory / ".token_secret").exists()


def test_settings_of_the_shell_are_none_of_the_new_project(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT", "none")
    monkeypatch.setenv("MIGRATIONS_DIR", "elsewhere")

    assert new("bookstore").exit_code == 0

    assert len(list((here / "bookstore" / "migrations" / "versions").glob("*_first.py"))) == 1


def test_a_directory_that_is_there_is_left_alone(here: Path) -> None:
    assert new("shop", "--template", "minimal").exit_code == 0
    before = (here / "shop" / "app.py").read_bytes()
    again = new("shop")
    assert again.exit_code == 1
    assert "shop is there already and not empty" in again.output
    assert (here / "shop" / "app.py").read_bytes() == before
    (here / "empty").mkdir()
    assert new("empty", "--template", "minimal").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["9lives"], 2, "begins with a letter"),
        (["a b"], 2, "begins with a letter"),
        (["json"], 2, "Python has a json already"),
        (["class"], 2, "Python has a class already"),
        (["maniflex"], 2, "Python has a maniflex already"),
        (["shop", "--template", "minimal", "--domains"], 2, "--domains goes with app and saas"),
        (["no/such/shop"], 1, "there is no directory"),
        (["shop", "--template", "sass"], 2, "'minimal', 'app', 'saas'"),
    ],
)
def test_what_cannot_be_made_is_refused_and_nothing_is_written(
    here: Path, arguments: list[str], code: int, message: str
) -> None:
    refused = new(*arguments)
    assert refused.exit_code == code
    assert message in " ".join(refused.output.split())
    assert list(here.iterdir()) == []


def test_packages_that_lack_are_named_before_anything_is_written(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)  # as where the extra `auth` is not installed
    refused = new("shop", "--template", "saas", "--database", "postgres")
    assert refused.exit_code == 1
    assert 'Type: pip install "maniflex[auth,postgres,encryption,export,cli]"' in " ".join(
        refused.output.split()
    )
    assert list(here.iterdir()) == []
    made = new("shop", "--template", "minimal")
    assert made.exit_code == 0
    assert "pip install -e '.[dev]'" in made.output


def test_with_git_there_is_a_first_commit(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.com")
    assert new("shop", "--template", "app", "--git").exit_code == 0
    log = subprocess.run(
        ["git", "status", "--short"], cwd=here / "shop", capture_output=True, text=True, check=True
    )
    assert log.stdout == ""
    files = subprocess.run(["git", "ls-files"], cwd=here / "shop", capture_output=True, text=True, check=True)
    others = set(files.stdout.split()) - set(Project("shop").files())
    assert [path.startswith("migrations/versions/") for path in others] == [True]


def test_secrets_of_a_project_stay_out_of_git() -> None:
    ignored = Project("shop").files()[".gitignore"].split()
    assert {".env", ".token_secret", "*.db"} <= set(ignored)


def test_the_wheel_holds_every_template(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    [wheel] = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    templates = [path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*.jinja")]
    assert len(templates) > 40
    assert {str(path) for path in templates} <= held
