"""Every entry: a wrong step, argument or field stops the start, and one message names them all."""

from __future__ import annotations

import asyncio
import inspect
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import validate

from maniflex import Context, DeclarationError, Operation
from maniflex.middleware.validate.rule_entry import RuleEntry
from maniflex.pipeline.entry import Entry, EntryDocs, describe_nothing
from maniflex.pipeline.registration import ACTION, BESIDE_STEPS, At
from tests.catalogue.factories import class_of, entry_classes, factories, homes_of, sections
from tests.catalogue.samples import (
    SAMPLES,
    Article,
    Section,
    make,
    misspelt,
    new_server,
    odd,
    register,
    wrong_steps,
)
from tests.kit.declarations import refusal_of, sealed
from tests.kit.docs import DOCS
from tests.kit.processes import ROOT

NAMES = sorted(factories())
STARTING = [name for name in NAMES if name not in SAMPLES or SAMPLES[name].starts]
OPTIONAL = (
    *("jwt", "cryptography", "argon2", "bcrypt", "redis", "asyncpg", "re2", "openpyxl", "alembic", "jinja2"),
    *("nats", "aio_pika", "confluent_kafka", "boto3", "httpx"),
)
ARTICLE = sealed(Section, Article)["Article"]
# Another entry, which asks for an identity on writes; the routes of the outbox.
BRINGS_ANOTHER = {"service.emit", "service.webhook", "auth.allow_public_read", "service.send_email"}
# A body that is too large and a conflict are refused by every write; the sample of a filter is a constant;
# OPTIONS is not shown unless told; the sample of an envelope has no schema; an audit of reads refuses nothing
# unless it is required.
ADDS_NOTHING = {
    *("body.max_body_size", "body.reject_unknown_fields", "db.audit_reads", "db.force_filter"),
    *("response.cors", "response.envelope", "validate.unique_field"),
}
Case = tuple[str, Any, dict[str, Any], str]  # step, entry, options of the registration, part of the refusal


def cases(name: str) -> Iterator[Case]:
    """Every wrong way to register what this factory makes."""
    sample = SAMPLES[name]
    home, positions = next(iter(homes_of(name).items()))
    options = {"at": str(positions[0]), **sample.register}
    for position in set(At) - set(positions):
        yield home, make(name, sample.right), {**options, "at": str(position)}, "it does nothing"
    for step in wrong_steps(name, make(name, sample.right)):
        yield step, make(name, sample.right), {}, "it does nothing"
    for arguments in sample.wrong:
        yield home, make(name, arguments), options, ""
    for spelling, arguments in misspelt(name, sample.right):
        yield home, make(name, arguments), options, spelling


def has_refusals_of_every_write(entry: Entry) -> bool:
    """Whether it is a rule for bodies that refuses as the rules of fields do."""
    return isinstance(entry, RuleEntry) and type(entry).codes is RuleEntry.codes


def test_every_factory_has_a_sample_with_wrong_arguments() -> None:
    """A new factory needs its row in samples.py."""
    assert [name for name in NAMES if name not in SAMPLES] == [], "SAMPLES of tests/catalogue/samples.py"
    for name, factory in factories().items():
        wrong = [*SAMPLES[name].wrong, *misspelt(name, SAMPLES[name].right)]
        assert wrong or not inspect.signature(factory).parameters, f"{name}: no call of it is wrong"


def test_no_entry_hides_from_the_catalogue() -> None:
    """An entry is named after its factory, which its section shows."""
    modules = dict(sections())
    for cls in entry_classes():
        section, _, public = str(vars(cls).get("name", "")).partition(".")
        if public and cls.__module__.startswith(f"maniflex.middleware.{section}"):
            assert hasattr(modules[section], public), cls
            assert f"{section}.{public}" in NAMES or not cls.homes.keys() - BESIDE_STEPS, cls


@pytest.mark.parametrize("name", STARTING)
def test_a_right_call_starts(name: str) -> None:
    sample, server = SAMPLES[name], new_server()
    step, positions = next(iter(homes_of(name).items()))
    register(server, step, make(name, sample.right), name, {"at": str(positions[0]), **sample.register})
    server.seal()


@pytest.mark.parametrize("name", NAMES)
def test_each_mistake_alone_stops_the_start(name: str) -> None:
    for step, entry, options, text in cases(name):
        server = new_server()
        register(server, step, entry, "the entry", options)
        problems = [one for one in refusal_of(server).problems if one.startswith(f"pipeline.{step}: ")]
        assert any(text in problem for problem in problems), (step, options, problems)


@pytest.mark.parametrize("name", NAMES)
def test_an_argument_of_any_type_works_or_is_refused_by_a_sentence(name: str) -> None:
    """Never by an error of an inner class, such as `'int' object has no attribute 'strip'`."""
    home, positions = next(iter(homes_of(name).items()))
    for arguments in odd(name):
        try:
            entry, server = make(name, arguments), new_server()
            register(server, home, entry, name, {"at": str(positions[0]), **SAMPLES[name].register})
            server.seal()
        except DeclarationError:
            pass
        except Exception as error:
            pytest.fail(f"{name}{arguments}: {type(error).__name__}: {error}")


def test_all_mistakes_of_all_entries_are_in_one_message() -> None:
    server, labels = new_server(), []
    for name in NAMES:
        for number, (step, entry, options, _) in enumerate(cases(name)):
            labels.append(f"pipeline.{step}: {name} no. {number}: ")
            register(server, step, entry, f"{name} no. {number}", options)
    problems = refusal_of(server).problems
    silent = [label for label in labels if not any(one.startswith(label) for one in problems)]
    assert silent == []
    assert len(labels) > 200


@pytest.mark.parametrize("name", NAMES)
def test_an_action_takes_it_or_stops_the_start(name: str) -> None:
    """X5."""
    entry = make(name, SAMPLES[name].right)
    server = new_server()

    @server.action("POST", "/act", middleware=[entry])
    async def act(ctx: Context) -> None: ...

    if ACTION in entry.homes:
        server.seal()
    else:
        assert any("POST /act" in one and name in one for one in refusal_of(server).problems)


@pytest.mark.parametrize("name", NAMES)
def test_it_tells_the_description_what_it_answers_or_that_it_is_nothing(name: str) -> None:
    """X15: an entry has `docs`, or says `docs = describe_nothing`."""
    assert class_of(name).docs is not Entry.docs, f"{name}: the API description knows nothing of it"
    entry = make(name, SAMPLES[name].right)
    for model in (None, ARTICLE):
        for operation in Operation:
            docs = entry.docs(model, operation) or EntryDocs()
            assert all(400 <= status < 600 and codes for status, codes in docs.refusals.items())


@pytest.fixture(scope="module")
def plain_document() -> dict[str, Any]:
    return asyncio.run(new_server().openapi())


@pytest.mark.parametrize("name", [n for n in STARTING if not n.startswith("openapi.")])
async def test_the_description_with_it_is_valid(name: str, plain_document: dict[str, Any]) -> None:
    """X15: and differs from the one without it, unless there is nothing to say."""
    sample, server = SAMPLES[name], new_server()
    step, positions = next(iter(homes_of(name).items()))
    entry = make(name, sample.right)
    register(server, step, entry, name, {"at": str(positions[0]), **sample.register})
    document = await server.openapi()
    is_silent = type(entry).docs is describe_nothing and name not in BRINGS_ANOTHER
    if is_silent or has_refusals_of_every_write(entry) or name in ADDS_NOTHING:
        assert document == plain_document, f"{name} changes the description"
    else:
        assert document != plain_document, f"{name} says nothing in the description: ADDS_NOTHING"
        some = {path: document["paths"][path] for path in ("/api/articles", "/api/articles/{id}")}
        validate({**document, "paths": some})


def test_importing_the_catalogue_loads_no_optional_library() -> None:
    """X2."""
    imports = "; ".join(f"import maniflex.middleware.{name}" for name, _ in sections())
    code = f"import sys; {imports}; print([one for one in {OPTIONAL!r} if one in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "[]\n"


def test_the_index_has_a_row_for_every_entry() -> None:
    """The page is what `scripts/show_catalogue.py` writes, and every row has a page and a sentence."""
    script = runpy.run_path(str(ROOT / "scripts" / "show_catalogue.py"))
    text = (DOCS / "catalogue" / "index.md").read_text()
    assert text == script["with_tables"](text), "run scripts/show_catalogue.py"
    for name in NAMES:
        rows = [line for line in text.splitlines() if line.startswith(f"| [`{name}`](")]
        assert rows, f"{name} stands on no page of docs/catalogue"
        [row] = rows
        assert row.endswith(". |"), row


def test_the_script_of_the_index_needs_nothing_but_its_environment(tmp_path: Path) -> None:
    code = f"import runpy; runpy.run_path({str(ROOT / 'scripts' / 'show_catalogue.py')!r})"  # writes nothing
    subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, check=True)
