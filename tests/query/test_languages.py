"""Filters, sorts, aggregates and files of texts in several languages; all their names are one field."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from maniflex import Context, DeclarationError, LocaleOptions, LocaleString, Model, Server, belongs_to, field
from maniflex.middleware import db, response, validate
from maniflex.testing import client
from tests.kit.http import created, csv_cells, data_of, error_of, serving

OPTIONS = LocaleOptions(supported=("en", "de", "ar"), fallbacks={"ar": ("de",)})
TEXTS: list[dict[str, str] | None] = [
    {"en": "Finance", "de": "Finanzen"},
    {"en": "Äpfel", "ar": "تفاح"},
    {"de": "zebra", "en": ""},
    {"sw": "outside"},
    {"en": "apple", "de": "Zebra", "ar": "أ"},
    {},
    None,
    {"en": "100%_'\"\\"},
]


class Tag(Model, aggregate=True, export=True, versioned=True):
    name: LocaleString | None = field(default=None, filterable=True, sortable=True)
    code: LocaleString | None = field(default=None, filterable=True, sortable=True, locale="dynamic")
    place: int = field(default=0, filterable=True, sortable=True)


class Post(Model):
    title: str
    tag_id: str | None = field(default=None, filterable=True)
    tag: Tag | None = belongs_to()


PATH = "/api/tags"


async def fill(http: httpx.AsyncClient) -> None:
    for place, texts in enumerate(TEXTS):
        await created(http, PATH, name=texts, place=place)


async def places(http: httpx.AsyncClient, query: str) -> list[int]:
    return [record["place"] for record in data_of(await http.get(f"{PATH}?{query}"))]


def text_of(texts: dict[str, str] | None, *chain: str) -> str | None:
    """What filters see: the first text of the chain, without a last resort."""
    return next((texts[code] for code in chain if texts.get(code)), None) if texts else None


@pytest.mark.parametrize(
    ("locale", "chain"),
    [("", ("en",)), ("de", ("de", "en")), ("ar", ("ar", "de", "en"))],
    ids=["", "de", "ar"],
)
async def test_filters_and_sorts_are_about_the_text_that_is_shown(
    database_url: str, locale: str, chain: tuple[str, ...]
) -> None:
    asked = f"&locale={locale}" if locale else ""
    shown = [text_of(texts, *chain) for texts in TEXTS]
    some = [(place, text) for place, text in enumerate(shown) if text is not None]
    async with serving(database_url, Tag, Post, locale=OPTIONS) as http:
        await fill(http)
        for text in {text for _, text in some}:
            expected = [place for place, one in some if one == text]
            assert await places(http, f"filter=name:eq:{quote(text)}&sort=place{asked}") == expected
        empty = [place for place, text in enumerate(shown) if text is None]
        assert await places(http, f"filter=name:is_null&sort=place{asked}") == empty
        assert await places(http, f"filter=name:not_null&sort=place{asked}") == [p for p, _ in some]
        matching = [p for p, text in some if "a" in text.lower()]
        assert await places(http, f"filter=name:contains:A&sort=place{asked}") == matching
        assert await places(http, f"filter=name:ilike:%25a%25&sort=place{asked}") == matching
        by_text = [p for p, text in sorted(some, key=lambda pair: pair[1])]
        assert await places(http, f"sort=name,place{asked}") == [*empty, *by_text]
        assert await places(http, f"sort=name:desc,place:desc{asked}") == [*by_text[::-1], *empty[::-1]]
        several = "Finance,zebra,apple"
        expected = [p for p, text in some if text in several.split(",")]
        assert await places(http, f"filter=name:in:{several}&sort=place{asked}") == expected


async def test_one_translation_is_compared_by_its_own_name(database_url: str) -> None:
    async with serving(database_url, Tag, Post, locale=OPTIONS) as http:
        await fill(http)
        german = [text_of(texts, "de") for texts in TEXTS]
        missing = [place for place, text in enumerate(german) if text is None]
        assert await places(http, "filter=name.de:is_null&sort=place") == missing
        assert await places(http, "filter=name.DE:contains:zeb&sort=place&locale=ar") == [2, 4]
        assert await places(http, "sort=name.de,place&filter=name.de:not_null") == [0, 4, 2]
        tag = data_of(await http.get(f"{PATH}?filter=place:eq:0"))[0]
        await created(http, "/api/posts", title="a", tag_id=tag["id"])
        for condition, count in (("tag.name:eq:Finance", 1), ("tag.name.de:eq:Finance", 0)):
            assert len(data_of(await http.get(f"/api/posts?filter={condition}&sort=tag.name.de"))) == count
        group = "filter[0]=name.de:eq:Zebra&filter[0]=place:eq:0&sort=place"
        assert await places(http, group) == [0, 4]


@pytest.mark.parametrize(
    "query",
    [
        "filter=name.d:eq:x",
        "filter=name.en'):eq:x",
        "filter=name.:eq:x",
        "filter=name.de.en:eq:x",
        "filter=place.de:eq:1",
        "filter=name:eq_field:name",
        "filter=name.de:eq_field:place",
        "sort=name.x!",
        "sort=place.de",
        "filter=code:eq:x",
        "sort=code",
        "select=name.de",
        "filter=name_i18n:is_null",
        "as_of=2020-01-01T00:00:00Z&filter=name:eq:x",
        "as_of=2020-01-01T00:00:00Z&sort=name.de",
    ],
)
async def test_what_cannot_be_asked_of_translations_is_refused(database_url: str, query: str) -> None:
    async with serving(database_url, Tag, Post, locale=OPTIONS) as http:
        error_of(await http.get(f"{PATH}?{query}"), 400, "INVALID_QUERY")


async def test_a_dynamic_text_is_compared_once_a_language_is_named(database_url: str) -> None:
    async with serving(database_url, Tag, Post, locale=OPTIONS) as http:
        await created(http, PATH, code={"de": "x"})
        assert len(await places(http, "filter=code:eq:x&locale=de")) == 1
        assert len(await places(http, "filter=code.de:eq:x&sort=code.de")) == 1


GROUPS = '{"select": [{"op": "count"}], "group_by": ["name"]}'


async def test_aggregates_group_by_the_text_that_is_shown(database_url: str) -> None:
    spec = {"select": [{"op": "count"}, {"op": "count", "field": "name.de"}], "group_by": ["name"]}
    async with serving(database_url, Tag, Post, locale=OPTIONS) as http:
        for texts in ({"de": "A", "en": "B"}, {"en": "A"}, {"en": "B"}):
            await created(http, PATH, name=texts)
        url = f"{PATH}/aggregate?locale=de&aggregate={quote(json.dumps(spec))}"
        assert data_of(await http.get(url)) == [
            {"name": "A", "count": 2, "count_name.de": 1},
            {"name": "B", "count": 1, "count_name.de": 0},
        ]


async def test_a_file_has_the_text_that_is_shown_or_a_column_for_each_language(database_url: str) -> None:
    async with serving(database_url, Tag, Post, locale=OPTIONS) as http:
        await created(http, PATH, name={"en": "Finance", "de": "Finanzen"}, code={"de": "c"}, place=1)
        base = f"{PATH}/export?select=place,name"
        assert csv_cells(await http.get(base)) == [["place", "name"], ["1", "Finance"]]
        assert csv_cells(await http.get(f"{base},code&locale=de")) == [
            ["place", "name", "code"],
            ["1", "Finanzen", "c"],
        ]
        assert csv_cells(await http.get(f"{PATH}/export?select=place,name_i18n")) == [
            ["place", "name.en", "name.de", "name.ar"],
            ["1", "Finance", "Finanzen", ""],
        ]
        lines = (await http.get(f"{PATH}/export?format=jsonl&select=name,name_i18n&locale=de")).text
        assert json.loads(lines) == {"name": "Finanzen", "name_i18n": {"en": "Finance", "de": "Finanzen"}}
        assert json.loads((await http.get(f"{PATH}/export?format=jsonl&select=name")).text) == {
            "name": "Finance"
        }


@pytest.mark.parametrize("path", [f"/aggregate?aggregate={quote(GROUPS)}", "/export?format=jsonl", ""])
async def test_every_answer_with_texts_says_its_language(sqlite_url: str, path: str) -> None:
    options = LocaleOptions(supported=("en", "de"), from_header=True)
    async with serving(sqlite_url, Tag, Post, locale=options) as http:
        await fill(http)
        answer = await http.get(f"{PATH}{path}", headers={"accept-language": "de"})
        assert (answer.status_code, answer.headers["content-language"]) == (200, "de"), answer.text
        assert "Accept-Language" in answer.headers["vary"]


async def test_the_past_and_histories_have_all_translations(database_url: str) -> None:
    async with serving(database_url, Tag, Post, locale=OPTIONS) as http:
        tag = await created(http, PATH, name={"en": "Finance"})
        changed = data_of(await http.patch(f"{PATH}/{tag['id']}", json={"name.de": "Finanzen"}))
        moment = changed["updated_at"]
        past = await http.get(f"{PATH}/{tag['id']}?as_of={moment}&locale=de")
        assert (data_of(past)["name"], data_of(past)["name_i18n"]) == ("Finanzen", changed["name_i18n"])
        assert past.headers["content-language"] == "de"
        versions = data_of(await http.get(f"{PATH}/{tag['id']}/history?sort=version:desc"))
        assert versions[0]["diff"] == {"name": {"old": {"en": "Finance"}, "new": changed["name_i18n"]}}


class Closed(Model):
    plan: LocaleString = field(default_factory=LocaleString, readonly=True)
    origin: LocaleString = field(default_factory=LocaleString, immutable=True)
    secret: LocaleString = field(default_factory=LocaleString, writeonly=True)
    inner: LocaleString = field(default_factory=LocaleString, hidden=True)
    gated: LocaleString = field(default_factory=LocaleString)
    seen: LocaleString = field(default_factory=LocaleString, filterable=True, sortable=True)
    loud: LocaleString = field(default_factory=LocaleString)


def closed_server(**settings: Any) -> Server:
    server = Server(locale=OPTIONS, **settings)
    server.register(Closed)

    def nobody(ctx: Context) -> bool:
        return False

    server.pipeline.validate.register(validate.restrict_field("gated", nobody), models=[Closed])
    server.pipeline.response.register(
        response.redact_field("seen", lambda ctx: ctx.header("x-role") != "admin"), models=[Closed]
    )
    return server


OTHER_NAMES = ("{0}", "{0}_i18n", "{0}.de")


def sent(name: str, pattern: str) -> dict[str, Any]:
    return {pattern.format(name): "x" if pattern.endswith(".de") else {"de": "x"}}


@pytest.mark.parametrize("pattern", OTHER_NAMES)
async def test_every_name_of_a_text_is_bound_by_the_rules_of_its_field(
    database_url: str, pattern: str
) -> None:
    async with client(closed_server(), database=database_url) as http:
        record = await created(http, "/api/closeds", **sent("origin", pattern))
        path, admin = f"/api/closeds/{record['id']}", {"x-role": "admin"}
        assert record["origin_i18n"] == {"de": "x"}
        for name in ("plan", "origin", "inner"):
            changed = data_of(await http.patch(path, json={pattern.format(name): {"de": "y"}}))
            assert changed["plan_i18n"] == {}
            assert changed["origin_i18n"] == {"de": "x"}
        error_of(await http.patch(path, json=sent("gated", pattern)), 403, "FIELD_FORBIDDEN")
        shown = data_of(await http.patch(path, json=sent("seen", pattern)))
        assert {"seen", "seen_i18n", "secret", "secret_i18n", "inner", "inner_i18n"}.isdisjoint(shown)
        assert data_of(await http.get(path, headers=admin))["seen_i18n"] == {"de": "x"}
        assert data_of(await http.patch(path, json=sent("secret", pattern))).keys() == shown.keys()


@pytest.mark.parametrize(
    "query", ["filter={}.de:eq:x", "filter={}:eq:x", "sort={}.de", "select={}", "select={}_i18n"]
)
@pytest.mark.parametrize("name", ["seen", "secret", "inner"])
async def test_a_text_that_is_hidden_cannot_be_asked_for_by_any_name(
    database_url: str, query: str, name: str
) -> None:
    async with client(closed_server(), database=database_url) as http:
        hidden = error_of(await http.get(f"/api/closeds?{query.format(name)}"), 400, "INVALID_QUERY")
        unknown = error_of(await http.get(f"/api/closeds?{query.format('nothing')}"), 400, "INVALID_QUERY")
        assert hidden["message"].replace(name, "nothing") == unknown["message"]


@pytest.mark.parametrize("pattern", OTHER_NAMES)
async def test_names_of_hidden_texts_are_as_unknown_as_the_field(database_url: str, pattern: str) -> None:
    async with client(closed_server(unknown_fields="refuse"), database=database_url) as http:
        for name, status in (("inner", 422), ("nothing", 422), ("loud", 201), ("secret", 201)):
            answer = await http.post("/api/closeds", json=sent(name, pattern))
            assert answer.status_code == status, (name, answer.text)


async def test_a_transform_changes_the_text_and_all_translations(database_url: str) -> None:
    server = closed_server()
    server.pipeline.response.register(
        response.transform_field("loud", lambda text: text.upper()), models=[Closed]
    )
    async with client(server, database=database_url) as http:
        record = await created(http, "/api/closeds", loud={"en": "a", "de": "b"})
        assert (record["loud"], record["loud_i18n"]) == ("A", {"en": "A", "de": "B"})


async def test_a_transform_changes_the_translations_of_versions_and_of_the_past_too(
    database_url: str,
) -> None:
    server = Server(locale=OPTIONS)
    server.register(Tag, Post)
    server.pipeline.response.register(
        response.transform_field("name", lambda text: text and text.upper()), models=[Tag]
    )
    async with client(server, database=database_url) as http:
        tag = await created(http, PATH, name={"en": "a"})
        changed = data_of(await http.patch(f"{PATH}/{tag['id']}", json={"name.de": "b"}))
        [newest, *_] = data_of(await http.get(f"{PATH}/{tag['id']}/history?sort=version:desc"))
        assert newest["diff"] == {"name": {"old": {"en": "A"}, "new": {"en": "A", "de": "B"}}}
        assert newest["snapshot"]["name"] == {"en": "A", "de": "B"}
        past = data_of(await http.get(f"{PATH}/{tag['id']}?as_of={changed['updated_at']}&locale=de"))
        assert (past["name"], past["name_i18n"]) == ("B", {"en": "A", "de": "B"})
        lines = (await http.get(f"{PATH}/export?format=jsonl&select=name,name_i18n&locale=de")).text
        assert json.loads(lines) == {"name": "B", "name_i18n": {"en": "A", "de": "B"}}
        sheet = csv_cells(await http.get(f"{PATH}/export?select=name_i18n"))
        assert sheet[1] == ["A", "B", ""]


def test_a_text_with_translations_binds_no_rows() -> None:
    server = Server(locale=OPTIONS)
    server.register(Tag, Post)
    server.pipeline.auth.register(db.force_filter("name", lambda ctx: "x"), models=[Tag])
    with pytest.raises(DeclarationError, match="Tag cannot be bound by 'name', which has translations"):
        server.seal()
