"""`maniflex check` and `maniflex routes`, and what they say about a target that is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from maniflex.cli import main
from tests.kit.processes import free_port, run_command

GOOD = """
from maniflex import Context, Model, Server, field

class Post(Model):
    title: str = field(filterable=True)

server = Server("sqlite:///posts.db")
server.register(Post)

@server.action("POST", "/posts/{id}/publish")
async def publish(ctx: Context) -> None: ...
"""


# Each mistake and what the message must say about it.
MISTAKES = {
    "an option": (
        "class Bad(Model):\n    age: int = field(min=9, max=1)\nserver.register(Bad)",
        ["Bad.age"],
    ),
    "a misspelt option": (
        "class Bad(Model):\n    age: int = field(read_only=True)\nserver.register(Bad)",
        ["read_only", "did you mean 'readonly'"],
    ),
    "two options": (
        "class Bad(Model):\n    a: int = field(min=9, max=1)\n    b: str = field(min=3)\n"
        "server.register(Bad)",
        ["Bad.a", "Bad.b", "2 problems"],
    ),
    "a relation": (
        "class Bad(Model):\n    owner: str = field(relation='Psot')\nserver.register(Bad)",
        ["Bad.owner", "no model named 'Psot'", "did you mean 'Post'"],
    ),
    "a table": ("class Bad(Model, table='posts'):\n    a: str\nserver.register(Bad)", ["Bad", "'posts'"]),
    "a model twice": ("server.register(Post)", ["Post", "twice"]),
    "a route": (
        "server.action('GET', '/posts', name='mine')(nothing)",
        ["GET /api/posts: both Post and action mine"],
    ),
    "a method": ("server.action('FETCH', '/x')(nothing)", ["action FETCH /x", "POST"]),
    "a path": ("server.action('GET', 'x')(nothing)", ["action GET x"]),
    "middleware for no model": (
        "server.pipeline.auth.register(nothing, models=['Psot'])",
        ["pipeline.auth: nothing", "did you mean 'Post'"],
    ),
    "middleware that never runs": (
        "server.pipeline.db.register(nothing, operations=[Operation.ACTION])",
        ["pipeline.db: nothing", "never reach the db step"],
    ),
    "middleware that nothing reaches": (
        "server.pipeline.db.register(nothing, operations=[Operation.EXPORT])",
        ["pipeline.db: nothing", "nothing serves export requests"],
    ),
    "middleware with a wrong signature": (
        "async def short(ctx) -> None: ...\nserver.pipeline.db.register(short)",
        ["pipeline.db: short", "(ctx, next)"],
    ),
    "a route and more": (
        "server.action('GET', '/posts', name='mine')(nothing)\nserver.computed(Post, 'title')(nothing)",
        ["2 problems", "both Post and action mine", "computed Post.title"],
    ),
    "a column that forgets": (
        "from pydantic import BaseModel, SecretStr\n"
        "class Key(BaseModel):\n    secret: SecretStr\n"
        "class Bad(Model):\n    key: Key\n"
        "server.register(Bad)",
        ["Bad.key: Key.secret would not come back from the database"],
    ),
    "an isolation level": (
        "from maniflex import with_transaction\nwith_transaction('serialisable')",
        ["did you mean 'serializable'"],
    ),
    "a path prefix": ("Server(path_prefix='/api/{x}')", ["path_prefix: '/api/{x}'"]),
    "a computed field": ("server.computed(Post, 'title')(nothing)", ["computed Post.title"]),
    "several at once": (
        "server.computed(Post, 'title')(nothing)\n"
        "server.pipeline.auth.register(nothing, models=['Psot'])\n"
        "server.action('FETCH', '/x')(nothing)",
        ["3 problems", "computed Post.title", "pipeline.auth", "FETCH"],
    ),
    "a setting": ("Server(prot=1)", ["there is no setting 'prot'", "did you mean 'port'"]),
    "options of no model": ("server.register(ModelOptions())", ["follow no model"]),
}
SOUND = """
from maniflex import Context, Model, ModelOptions, Operation, Server, field

class Post(Model):
    title: str

async def nothing(*args) -> None: ...

server = Server("sqlite:///posts.db")
server.register(Post)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_check_says_ok_and_touches_no_database(here: Path) -> None:
    (here / "good_one.py").write_text(GOOD)

    checked = invoke("check", "good_one:server")

    assert (checked.exit_code, checked.output) == (0, "ok: 34 routes\n")
    assert not (here / "posts.db").exists()


def test_check_needs_no_database_to_be_there(here: Path) -> None:
    (here / "far_one.py").write_text(
        GOOD.replace("sqlite:///posts.db", "postgresql://nobody@127.0.0.1:1/none")
    )

    assert invoke("check", "far_one").exit_code == 0


@pytest.mark.parametrize("mistake", MISTAKES)
def test_check_names_every_mistake_in_one_message_and_ends_with_1(mistake: str, here: Path) -> None:
    code, expected = MISTAKES[mistake]
    name = "bad_" + mistake.replace(" ", "_")
    (here / f"{name}.py").write_text(SOUND + code + "\n")

    checked = invoke("check", f"{name}:server")

    assert checked.exit_code == 1
    for part in expected:
        assert part in checked.output
    assert "Traceback" not in checked.output
    assert not (here / "posts.db").exists()


def test_an_invalid_app_is_not_served_either(here: Path) -> None:
    (here / "bad_served.py").write_text(SOUND + MISTAKES["several at once"][0])

    refused = invoke("run", "bad_served:server")

    assert refused.exit_code == 1
    assert "3 problems" in refused.output
    assert not (here / "posts.db").exists()


def test_routes_lists_method_path_and_owner_of_everything(here: Path) -> None:
    (here / "good_routes.py").write_text(GOOD)

    listed = invoke("routes", "good_routes:server")

    assert listed.exit_code == 0
    rows = [line.split(None, 2) for line in listed.output.splitlines()]
    assert ["POST", "/api/posts", "Post"] in rows
    assert ["PATCH", "/api/posts/{id}", "Post"] in rows
    assert ["POST", "/api/posts/{id}/publish", "action publish"] in rows
    assert ["GET", "/health", "probe"] in rows
    assert len(rows) == 34
    paths = [row[1] for row in rows]
    assert paths == sorted(paths)


def test_openapi_prints_the_document_and_touches_no_database(here: Path) -> None:
    (here / "good_described.py").write_text(GOOD)

    printed = invoke("openapi", "good_described:server")

    assert printed.exit_code == 0
    assert "/api/posts/{id}/publish" in json.loads(printed.output)["paths"]
    assert not (here / "posts.db").exists()


def every_command(group: click.Group = main, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from every_command(command, *names, name)
        else:
            yield (*names, name), command


@pytest.mark.parametrize(
    ("names", "command"), [pytest.param(*one, id=" ".join(one[0])) for one in every_command()]
)
def test_every_command_ends_with_2_when_it_is_used_wrongly_and_has_help(
    names: tuple[str, ...], command: click.Command, here: Path
) -> None:
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    assert invoke(*names, "--help").exit_code == 0
    assert invoke(*names, "--no-such-option").exit_code == 2
    if any(argument.required for argument in arguments):
        assert invoke(*names).exit_code == 2
    if any(argument.name == "target" for argument in arguments):
        required = [o.opts[0] for o in command.params if isinstance(o, click.Option) and o.required]
        others = ["x" for argument in arguments if argument.name != "target" and argument.required]
        options = [text for name in required for text in (name, "x")]
        refused = invoke(*names, "nowhere:server", *others, *options)
        assert refused.exit_code == 2
        assert "Error: " in refused.output


def test_run_ends_with_1_when_the_database_is_away(here: Path) -> None:
    (here / "away.py").write_text(
        GOOD.replace("sqlite:///posts.db", f"postgresql://127.0.0.1:{free_port()}/x")
    )

    ended = run_command("run", "away", "--port", "0", cwd=here)

    assert ended.returncode == 1
    assert "could not start" in ended.stderr


@pytest.mark.parametrize("command", ["check", "openapi", "routes", "run"])
def test_a_module_that_is_not_there_is_one_sentence(command: str, here: Path) -> None:
    refused = invoke(command, "nowhere:server")

    assert refused.exit_code == 2
    assert refused.output == "Error: there is no module 'nowhere' here\n"


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("serve", "has no server called 'serve'; did you mean 'server'"),
        ("x", "has no server called 'x'; it has server"),
        ("Post", "has no server called 'Post'"),
    ],
)
def test_an_attribute_that_is_no_server_is_one_sentence(attribute: str, said: str, here: Path) -> None:
    (here / "good_names.py").write_text(GOOD)

    refused = invoke("check", f"good_names:{attribute}")

    assert refused.exit_code == 2
    assert said in refused.output
    assert refused.output.count("\n") == 1


def test_the_name_server_may_be_left_out_and_an_empty_target_is_explained(here: Path) -> None:
    (here / "good_short.py").write_text(GOOD)

    assert invoke("check", "good_short").exit_code == 0
    refused = invoke("check", ":server")
    assert refused.exit_code == 2
    assert "write it as module:server" in refused.output


@pytest.mark.parametrize("target", ["../app:server", "./app:server"])
def test_a_path_is_no_module_and_that_is_explained(target: str, here: Path) -> None:
    refused = invoke("check", target)

    assert refused.exit_code == 2
    assert "write it as module:server" in refused.output


@pytest.mark.parametrize("code", ["0", "3", ""])
def test_a_module_that_ends_the_process_while_it_is_imported_is_refused(code: str, here: Path) -> None:
    (here / "script.py").write_text(f"import sys\nsys.exit({code})\n")

    refused = run_command("check", "script", cwd=here)

    assert refused.returncode == 1
    assert "script ended the process while it was imported" in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["no_such_library", "bro", "broken_import_too"])
def test_an_import_that_fails_inside_the_module_is_not_blamed_on_the_module(missing: str, here: Path) -> None:
    (here / "broken_import.py").write_text(f"import {missing}\n")

    refused = run_command("check", "broken_import", cwd=here)

    assert refused.returncode == 1
    assert f"No module named '{missing}'" in refused.stderr
    assert "no module 'broken_import'" not in refused.stderr


def test_a_module_in_a_package_is_found_from_the_working_directory(here: Path) -> None:
    (here / "shop").mkdir()
    (here / "shop" / "app.py").write_text(GOOD)

    checked = run_command("check", "shop.app:server", cwd=here)

    assert checked.stdout == "ok: 34 routes\n", checked.stderr
    assert (
        run_command("check", "shop.nothing:server", cwd=here).stderr
        == "Error: there is no module 'shop.nothing' here\n"
    )


@pytest.mark.parametrize(
    "options", [("--port", "x"), ("--workers", "0"), ("--port", "70000"), ("--wrokers", "2")]
)
def test_options_that_cannot_be_are_refused_without_a_traceback(options: tuple[str, str], here: Path) -> None:
    (here / "good_options.py").write_text(GOOD)

    refused = invoke("run", "good_options", *options)

    assert refused.exit_code == 2
    assert "Error" in refused.output
    assert "Traceback" not in refused.output
    assert not isinstance(refused.exception, AssertionError)
    assert not os.path.exists("posts.db")


@pytest.mark.parametrize(
    "arguments", [("--help",), ("-h",), ("run", "--help"), ("check", "-h"), ("--version",)]
)
def test_help_and_version_are_there(arguments: tuple[str, ...]) -> None:
    helped = invoke(*arguments)

    assert helped.exit_code == 0
    assert "maniflex" in helped.output.lower() or "usage" in helped.output.lower()


def test_the_commands_are_also_a_module() -> None:
    ended = subprocess.run([sys.executable, "-m", "maniflex", "--help"], capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr
    assert set(main.commands) <= set(ended.stdout.split())


def test_check_makes_no_directory(here: Path) -> None:
    (here / "with_files.py").write_text(
        SOUND.replace('posts.db")', 'posts.db", storage="file:uploads/deep")')
    )
    before = sorted(here.rglob("*"))
    checked = invoke("check", "with_files")
    assert checked.exit_code == 0, checked.output
    assert [path for path in sorted(here.rglob("*")) if "__pycache__" not in path.parts] == before


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def (", "SyntaxError: "),
    ],
)
def test_a_module_that_cannot_be_imported_shows_its_own_lines_alone(
    here: Path, line: str, expected: str
) -> None:
    (here / "inner_part.py").write_text(f"{line}\n")
    (here / "outer_part.py").write_text("import inner_part\n")
    checked = invoke("check", "outer_part")
    assert checked.exit_code == 1
    assert expected in checked.output
    assert "inner_part.py" in checked.output
    assert checked.output.count("  File ") == 2
    assert "click" not in checked.output


def test_the_module_of_this_directory_is_meant(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "same_name.py").write_text("raise RuntimeError('another project')\n")
    (here / "same_name.py").write_text(GOOD)
    monkeypatch.syspath_prepend(other)  # an installed project of the same shape; this one is on the path too
    assert invoke("check", "same_name").exit_code == 0
