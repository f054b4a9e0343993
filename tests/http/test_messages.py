"""Refusals in the language of the client."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from maniflex import ConfigError, Context, LocaleOptions, Model, Server, field
from maniflex._german import GERMAN
from maniflex._messages import Catalogue
from maniflex.errors import RequestError
from maniflex.model import value_rules as validation
from maniflex.testing import client
from tests.kit.http import error_of, serving
from tests.kit.refusal_texts import texts_of_refusals

OPTIONS = LocaleOptions(from_header=True)


class Note(Model):
    title: str = field(max_length=5, filterable=True)
    stars: int = field(default=0, min=0, max=5)


def kinds_of(cls: type[RequestError]) -> Iterator[type[RequestError]]:
    for kind in cls.__subclasses__():
        if kind.__module__.startswith("maniflex."):
            yield kind
            yield from kinds_of(kind)


async def test_a_refusal_is_told_in_the_language_that_is_asked_for(database_url: str) -> None:
    async with serving(database_url, Note, messages={"de": {}}, locale=OPTIONS) as http:
        german = {"accept-language": "de-AT, en"}
        body = {"title": "too long", "stars": 9, "titel": 1}
        plain = error_of(await http.post("/api/notes", json=body), 422, "VALIDATION_FAILED")
        answer = await http.post("/api/notes", json=body, headers=german)
        error = error_of(answer, 422, "VALIDATION_FAILED")
        assert error["message"] == "ein oder mehrere Felder sind ungültig"
        assert [detail["message"] for detail in error["details"]] == [
            "Feld „title“ darf höchstens 5 Zeichen haben",
            "Feld „stars“ darf höchstens 5 sein",
        ]
        keys = [[(detail["field"], detail["code"]) for detail in one["details"]] for one in (error, plain)]
        assert keys[0] == keys[1]
        assert answer.headers["content-language"] == "de"
        assert answer.headers["vary"] == "Accept-Language"
        missing = error_of(await http.get("/api/notes/x?locale=de"), 404, "NOT_FOUND")
        assert missing["message"] == "Datensatz nicht gefunden"
        assert error_of(await http.get("/api/nothing?locale=de"), 404, "NOT_FOUND")["message"] == (
            "diesen Pfad gibt es nicht"
        )
        asked = await http.get("/api/notes?filter=nothing:eq:1", headers=german)
        assert error_of(asked, 400, "INVALID_QUERY")["message"] == (
            "filter: nach 'nothing' kann nicht gefiltert werden"
        )


async def test_other_languages_and_servers_without_catalogues_stay_english(sqlite_url: str) -> None:
    async with serving(sqlite_url, Note, messages={"de": {}}, locale=OPTIONS) as http:
        answer = await http.get("/api/notes/x?locale=fr")
        assert error_of(answer, 404, "NOT_FOUND")["message"] == "record not found"
        assert answer.headers["content-language"] == "en"
    async with serving(sqlite_url, Note) as http:
        answer = await http.get("/api/notes/x?locale=de", headers={"accept-language": "de"})
        assert error_of(answer, 404, "NOT_FOUND")["message"] == "record not found"
        assert {"content-language", "vary"}.isdisjoint(answer.headers)


async def test_an_application_adds_its_own_texts_and_changes_ours(sqlite_url: str) -> None:
    german = {"record not found": "weg", "only {count} left": "nur noch {count}"}
    server = Server(messages={"de": german, "pt-BR": {'field "{field}" is required': "falta {field}"}})
    server.register(Note)

    @server.action("POST", "/buy")
    async def buy(ctx: Context) -> Any:
        ctx.abort(409, "SOLD_OUT", "only 3 left")

    async with client(server, database=sqlite_url) as http:
        assert error_of(await http.get("/api/notes/x?locale=de"), 404, "NOT_FOUND")["message"] == "weg"
        sold_out = error_of(await http.post("/api/buy?locale=de"), 409, "SOLD_OUT")
        assert sold_out["message"] == "nur noch 3"
        refused = error_of(await http.post("/api/notes?locale=pt-br", json={}), 422, "VALIDATION_FAILED")
        assert refused["message"] == "one or more fields failed validation"
        assert refused["details"][0]["message"] == "falta title"


def compiled(texts: dict[str, str]) -> bytes:
    """What msgfmt makes of these texts."""
    pairs = [("", "Content-Type: text/plain; charset=UTF-8\n"), *sorted(texts.items())]
    keys, values = ([pair[i].encode() for pair in pairs] for i in (0, 1))
    start = 28 + 16 * len(pairs)
    table, content = b"", b""
    for several in (keys, values):
        for text in several:
            table += struct.pack("<II", len(text), start + len(content))
            content += text + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
    return head + table + content


async def test_a_catalogue_is_a_file_of_gettext(sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "fr.mo"
    path.write_bytes(compiled({"record not found": "introuvable"}))
    async with serving(sqlite_url, Note, messages={"fr": path}) as http:
        missing = error_of(await http.get("/api/notes/x?locale=fr-CA"), 404, "NOT_FOUND")
        assert missing["message"] == "introuvable"


@pytest.mark.parametrize(
    "wrong",
    [
        ["de"],
        {"d": {}},
        {"de": {"a": 1}},
        {"de": "nowhere.mo"},
        {"de": {"{a}{a}": ""}},
        {"de": {"only {count} left": "nur noch {number}"}},
        {"de": {"sold out": "{count} sind weg"}},
    ],
)
def test_catalogues_that_cannot_be_used_stop_the_start(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="messages"):
        Server(database=":memory:", messages=wrong)


def test_the_german_catalogue_has_every_kind_of_refusal_and_every_rule_of_a_field() -> None:
    german = Catalogue(GERMAN)
    texts = {kind.message for kind in kinds_of(RequestError)}
    numbers = dict.fromkeys(
        ("min_length", "max_length", "ge", "le", "gt", "lt", "multiple_of", "max_digits", "decimal_places"), 7
    )
    parts = {**numbers, "whole_digits": 7, "pattern": "^a", "expected": "a, b"}
    texts |= {text.format_map(parts) for _, text in validation._SENTENCES.values()}
    texts |= set(validation._FAMILIES.values())
    assert {text for text in texts if german.translate(text) == text} == set()


def test_the_german_catalogue_has_every_text_of_the_source() -> None:
    german = Catalogue(GERMAN)
    texts = texts_of_refusals()
    assert len(texts) > 200
    examples = {"must be 7"}  # of times, which have texts of their own
    missing = {text: place for text, place in texts.items() if german.translate(text) == text}
    assert missing.keys() <= examples, missing


async def test_what_a_dialect_lacks_is_said_as_in_its_language(sqlite_url: str) -> None:
    catalogues = {"de-AT": {"method not allowed": "na"}, "de": {"record not found": "weg"}}
    async with serving(sqlite_url, Note, messages=catalogues) as http:
        texts = [
            error_of(await http.request(method, f"{path}?locale=de-at"), status, code)["message"]
            for method, path, status, code in (
                ("PUT", "/api/notes", 405, "METHOD_NOT_ALLOWED"),
                ("GET", "/api/notes/x", 404, "NOT_FOUND"),
                ("GET", "/api/nothing", 404, "NOT_FOUND"),
            )
        ]
        assert texts == ["na", "weg", "diesen Pfad gibt es nicht"]


def test_a_catalogue_that_nobody_could_ask_for_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="messages: 'fr' is not among the supported locales"):
        Server(locale=LocaleOptions(supported=("en", "de-AT")), messages={"de": {}, "fr": {}})


@pytest.mark.parametrize("text", ["{0}", "{0}: {0} takes {0}", "{0}; did you mean '{0}'?"])
def test_a_text_that_clients_make_long_is_translated_in_no_time(text: str) -> None:
    """What stands in a part is theirs: it may look like any other text."""
    german = Catalogue(GERMAN)
    for part in ("x", ": ", "a: takes ", "; did you mean '", 'field "', "is required"):
        long_text = text.format(part * 20_000)[:1_000]
        began = time.process_time()
        for _ in range(20):
            german.translate(long_text)
        assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("english", "text"),
    [
        ("filter: 'nme.de' is not a field that can be filtered; did you mean 'name'?",
         "filter: nach 'nme.de' kann nicht gefiltert werden; ist „name“ gemeint?"),
        ("sort: 'a' is not a field that can be sorted by", "sort: nach 'a' kann nicht sortiert werden"),
        ("filter: stars takes a whole number", "filter: stars erwartet eine ganze Zahl"),
        ("field \"a\" must be one of: b, c", "Feld „a“ muss eines davon sein: b, c"),
        ('field "a <b>{count}</b>" is required', "Feld „a <b>{count}</b>“ ist erforderlich"),
    ],
)  # fmt: skip
def test_parts_of_a_text_stay_as_they_are(english: str, text: str) -> None:
    assert Catalogue(GERMAN).translate(english) == text


def test_translations_name_the_parts_of_their_texts() -> None:
    import re

    for english, text in GERMAN.items():
        assert sorted(re.findall(r"\{(\w+)\}", text)) == sorted(re.findall(r"\{(\w+)\}", english)), english
