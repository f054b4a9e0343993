"""`export` and `import`, as somebody types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.commands import Commands

APP = """
from maniflex import Config, Model, Server, field
from maniflex.middleware import auth, db

class Part(Model, export=True):
    code: str = field(unique=True, filterable=True, sortable=True, min_length=2)
    stock: int = 0
    pin: str | None = field(default=None, writeonly=True)
    tenant_id: str = field(default="", relation=None)

server = Server(Config.from_env())
server.register(Part)
server.pipeline.auth.register(auth.require_role("clerk"), operations="create")
server.pipeline.db.register(db.tenancy("tenant_id"))
"""
AS_ADA = ("--as", "ada", "--role", "clerk", "--tenant", "t1")


@pytest.fixture
def commands(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Commands:
    (tmp_path / "app.py").write_text(APP)
    return Commands(tmp_path, database_url, monkeypatch)


TRANSLATED = """
from maniflex import Config, LocaleOptions, LocaleString, Model, Server, field

class Word(Model, export=True):
    code: str = field(unique=True, filterable=True, sortable=True)
    name: LocaleString = field(filterable=True)
    hint: LocaleString | None = field(default=None, locale="resolve")
    use: LocaleString | None = field(default=None, locale="dynamic")

server = Server(Config.from_env(locale=LocaleOptions(supported=("en", "de", "fr"))))
server.register(Word)
"""


@pytest.mark.parametrize("who", ["--unscoped", "--as-user"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_file_goes_to_translators_and_back(commands: Commands, kind: str, who: str) -> None:
    (commands.here / "app.py").write_text(TRANSLATED)
    as_whom = ("--unscoped",) if who == "--unscoped" else AS_ADA
    start = commands.here / "start.csv"
    start.write_text(
        "code,name.en,name.de,hint.en,use.de\na,Apple,Apfel,red,essen\nb,Pear,,,\n", encoding="utf-8"
    )
    words = ("import", "app:server", "Word")
    assert "created 2" in commands(*words, str(start), *as_whom)
    select = (*as_whom, "--select", "code,name_i18n,hint_i18n,use_i18n", "--sort", "code", "--format", kind)
    sheet = commands("export", "app:server", "Word", *select)
    if kind == "csv":
        assert sheet.splitlines() == [
            "code,name.en,name.de,name.fr,hint.en,hint.de,hint.fr,use.en,use.de,use.fr",
            "a,Apple,Apfel,,red,,,,essen,",
            "b,Pear,,,,,,,,",
        ]
        filled = sheet.replace("Apfel,,red", "Apfel,Pomme,red")
    else:
        filled = sheet.replace('"de":"Apfel"', '"de":"Apfel","fr":"Pomme"')
    back = commands.here / f"back.{kind}"
    back.write_text(filled, encoding="utf-8")
    assert "created 0 · updated 1 · unchanged 1" in commands(*words, str(back), *as_whom, "--upsert", "code")
    assert commands("export", "app:server", "Word", *select) == filled
    assert "created 0 · updated 0 · unchanged 2" in commands(*words, str(back), *as_whom, "--upsert", "code")


def test_lines_that_differ_in_the_tenant_alone_change_nothing(commands: Commands) -> None:
    file = commands.here / "parts.csv"
    file.write_text("code,stock,tenant_id\na1,3,\nb2,4,t2\n")
    options = ("import", "app:server", "Part", str(file), *AS_ADA, "--upsert", "code")
    assert "created 2 · updated 0 · unchanged 0" in commands(*options)
    before = commands("export", "app:server", "Part", "--unscoped")
    assert "created 0 · updated 0 · unchanged 2" in commands(*options)
    assert commands("export", "app:server", "Part", "--unscoped") == before


def test_a_file_comes_in_and_goes_out_again(commands: Commands) -> None:
    file = commands.here / "parts.csv"
    file.write_text("Code;In stock;pin\na1;3;SECRET\nx;1;\nb2;=1+1;\nc3;7;\n", encoding="utf-8")
    options = ("import", "app:server", "Part", str(file), "--map", "In stock=stock")
    checked = commands(*options, *AS_ADA, "--check", code=1)
    assert "would be created 2 · would be updated 0 · would be unchanged 0 · would be refused 2" in checked
    assert 'line 3: code: field "code" must have at least 2 characters' in checked
    assert commands("export", "app:server", "Part", "--unscoped").splitlines() == [
        "id,code,stock,tenant_id,created_at,updated_at"
    ]
    refusals = commands.here / "refused.csv"
    imported = commands(*options, *AS_ADA, "--upsert", "code", "--refused", str(refusals), code=1)
    assert "created 2 · updated 0 · unchanged 0 · refused 2" in imported
    assert refusals.read_text().splitlines()[1].startswith("3,code,")
    again = commands(*options, *AS_ADA, "--upsert", "code", code=1)
    assert "created 0 · updated 0 · unchanged 2 · refused 2" in again

    own = commands("export", "app:server", "Part", *AS_ADA, "--sort", "code", "--select", "code,stock")
    assert own.splitlines() == ["code,stock", "a1,3", "c3,7"]
    theirs = commands("export", "app:server", "Part", "--as", "bob", "--tenant", "t2", "--format", "jsonl")
    assert theirs == ""
    everything = commands("export", "app:server", "Part", "--unscoped", "--filter", "code:eq:a1")
    assert "SECRET" not in everything
    out = commands.here / "parts.jsonl"
    commands("export", "app:server", "parts", "--unscoped", "--out", str(out))
    assert {json.loads(line)["code"] for line in out.read_text().splitlines()} == {"a1", "c3"}


def test_rules_bind_an_identity_and_not_who_is_unscoped(commands: Commands) -> None:
    file = commands.here / "parts.jsonl"
    file.write_text('{"code": "a1", "stock": 1}\n{"code": "b2", "tenant_id": "t9"}\n', encoding="utf-8")
    options = ("import", "app:server", "Part", str(file))
    report = json.loads(commands(*options, "--as", "eve", "--tenant", "t1", "--json", code=1))
    assert (report["created"], report["refused"]) == (0, 2)
    assert "created 2" in commands(*options, "--unscoped")
    assert "unchanged 2" in commands(*options, "--unscoped", "--upsert", "code")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("export", "app:server", "Part"), 2, "--unscoped"),
        (("import", "app:server", "Part", "app.py"), 2, "--unscoped"),
        (("export", "app:server", "Part", "--role", "clerk"), 2, "say who acts"),
        (("export", "app:server", "Part", "--as", "ada", "--unscoped"), 2, "no identity"),
        (("export", "app:server", "Prat", "--unscoped"), 1, "did you mean 'Part'"),
        (("import", "app:server", "Part", "app.py", "--unscoped"), 1, "ends with .csv"),
        (("import", "app:server", "Part", "none.csv", "--unscoped"), 2, "does not exist"),
        (("import", "app:server", "Part", "p.csv", "--unscoped", "--map", "stock"), 2, "column=field"),
        (("import", "app:server", "Part", "p.csv", "--unscoped", "--map", "x=stock"), 1, "no column 'x'"),
        (("import", "app:server", "Part", "p.csv", "--unscoped", "--upsert", "stock"), 1, "no unique field"),
        (("import", "app:server", "Part", "p.csv", "--unscoped", "--map", "code=cod"), 1, "no field 'cod'"),
        (("export", "app:server", "Part", "--unscoped", "--filter", "pin:eq:1"), 1, "pin"),
    ],
)
def test_a_command_that_cannot_be_meant_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "p.csv").write_text("code\na1\n")
    commands = Commands(tmp_path, f"sqlite:///{tmp_path}/x.db", monkeypatch)
    assert message in commands(*arguments, code=code)
