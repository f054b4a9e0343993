"""Texts in several languages: what is shown of them, and what bodies change of them."""

from __future__ import annotations

from random import Random
from typing import Any

import httpx
import pytest

from maniflex import Context, DeclarationError, LocaleOptions, LocaleString, Model, Server, belongs_to, field
from maniflex.middleware import response, validate
from maniflex.testing import client
from tests.kit.http import created, data_of, error_of, offenders, serving

FINANCE = {"en": "Finance", "ar": "مالية"}
OPTIONS = LocaleOptions(supported=("en", "de", "ar", "fr"), rtl=("ar",), from_header=True)


class Department(Model, optimistic_lock=True):
    name: LocaleString = field(filterable=True, sortable=True, max_length=30)
    motto: LocaleString | None = field(default=None, locale="resolve")
    sign: LocaleString | None = field(default=None, locale="dynamic")


class Person(Model):
    nick: str
    department_id: str | None = None
    department: Department | None = belongs_to()


PATH = "/api/departments"


async def department(http: httpx.AsyncClient, **values: Any) -> Any:
    return await created(http, PATH, **{"name": FINANCE, **values})


async def test_a_text_is_shown_in_the_language_that_is_asked_for(database_url: str) -> None:
    async with serving(database_url, Department, Person, locale=OPTIONS) as http:
        record = await department(http, motto={"en": "Count", "de": "Zähle"}, sign={"en": "F"})
        assert (record["name"], record["name_i18n"]) == ("Finance", FINANCE)
        assert (record["motto"], record["sign"]) == ("Count", {"en": "F"})
        assert {"motto_i18n", "sign_i18n"}.isdisjoint(record)

        answer = await http.get(f"{PATH}/{record['id']}?locale=ar-SA")
        arabic = data_of(answer)
        assert (arabic["name"], arabic["motto"], arabic["sign"]) == ("مالية", "Count", "F")
        assert answer.json()["meta"] == {"_dir": "rtl"}
        assert answer.headers["content-language"] == "ar"
        page = (await http.get(f"{PATH}?locale=AR")).json()
        assert page["data"] == [arabic]
        assert page["meta"] == {"total": 1, "page": 1, "limit": 20, "pages": 1, "_dir": "rtl"}

        person = await created(http, "/api/people", nick="Ann", department_id=record["id"])
        shown = await http.get(f"/api/people/{person['id']}?include=department&locale=ar")
        assert data_of(shown)["department"] == arabic
        assert "meta" not in (await http.get(f"{PATH}/{record['id']}")).json()


@pytest.mark.parametrize("query", ["", "?locale=ar", "?locale=de"])
async def test_lists_records_selections_and_answers_of_writes_show_the_same(
    database_url: str, query: str
) -> None:
    """The fast path writes rows, the slow one dicts."""
    async with serving(database_url, Department, Person, locale=OPTIONS) as http:
        record = await department(http, sign={"de": "Geld"})
        one = data_of(await http.get(f"{PATH}/{record['id']}{query}"))
        assert data_of(await http.get(f"{PATH}{query}")) == [one]
        names = ",".join(name for name in one if not name.endswith("_i18n"))
        selected = data_of(await http.get(f"{PATH}{query}{'&' if query else '?'}select={names}"))
        assert selected == [one]
        patched = data_of(await http.patch(f"{PATH}/{record['id']}{query}", json={"motto": None}))
        assert {**patched, "updated_at": one["updated_at"]} == one
        only = f"{PATH}{query}{'&' if query else '?'}select=motto_i18n"
        assert data_of(await http.get(only)) == [{"motto_i18n": None}]


async def test_the_header_chooses_the_first_language_that_there_is(database_url: str) -> None:
    async with serving(database_url, Department, Person, locale=OPTIONS) as http:
        record = await department(http, name={"en": "A", "fr": "B", "de": "C"}, sign={"fr": "x"})

        async def shown(header: str, query: str = "") -> str:
            answer = await http.get(f"{PATH}/{record['id']}{query}", headers={"accept-language": header})
            assert answer.headers["vary"] == "Accept-Language"
            return f"{data_of(answer)['name']} {answer.headers['content-language']}"

        assert await shown("fr-CH, en") == "B fr"
        assert await shown("it, fr;q=0, de;q=0.1, fr") == "C de"
        assert await shown("it, *") == "A en"
        assert await shown("de", "?locale=fr") == "B fr"
        assert await shown("de", "?locale=it") == "C de"
        by_header = await http.get(f"{PATH}/{record['id']}", headers={"accept-language": "fr"})
        assert data_of(by_header)["sign"] == {"fr": "x"}, (
            "only the parameter makes one text of a dynamic field"
        )
        listed = await http.get(f"{PATH}?filter=name:eq:B&sort=name", headers={"accept-language": "fr"})
        assert len(data_of(listed)) == 1
        assert data_of(await http.get(f"{PATH}?filter=name:eq:B")) == []


async def test_a_server_without_from_header_does_not_look_at_it(sqlite_url: str) -> None:
    async with serving(sqlite_url, Department, Person) as http:
        record = await department(http)
        answer = await http.get(f"{PATH}/{record['id']}", headers={"accept-language": "ar"})
        assert data_of(answer)["name"] == "Finance"
        assert "vary" not in answer.headers


@pytest.mark.parametrize("query", ["locale=en')--", "locale=", "locale=en&locale=de", "%6Cocale=!"])
async def test_what_is_no_language_is_refused_before_anything_is_stored(
    database_url: str, query: str
) -> None:
    async with serving(database_url, Department, Person, locale=OPTIONS) as http:
        error_of(await http.get(f"{PATH}?{query}"), 400, "INVALID_QUERY")
        error_of(await http.post(f"{PATH}?{query}", json={"name": FINANCE}), 400, "INVALID_QUERY")
        error_of(await http.post(f"/api/people?{query}", json={"nick": "x"}), 400, "INVALID_QUERY")
        assert data_of(await http.get(PATH)) == data_of(await http.get("/api/people")) == []


async def test_texts_outside_the_chain_are_shown_always_the_same(database_url: str) -> None:
    async with serving(database_url, Department, Person) as http:
        record = await department(http, name={"sw": "S", "af": "A", "zu": ""})
        shown = [data_of(await http.get(f"{PATH}/{record['id']}?locale=de"))["name"] for _ in range(5)]
        assert set(shown) == {"A"}


async def test_fallbacks_stand_in_and_without_fallback_nothing_does(database_url: str) -> None:
    options = LocaleOptions(fallbacks={"ca": ("es",)})
    async with serving(database_url, Department, Person, locale=options) as http:
        await department(http, name={"es": "hola", "en": "hello"})
        [shown] = data_of(await http.get(f"{PATH}?locale=ca-ES&filter=name:eq:hola&sort=name"))
        assert shown["name"] == "hola"


async def test_without_fallback_only_the_language_that_is_asked_for_is_shown(database_url: str) -> None:
    async with serving(database_url, Department, Person, locale=LocaleOptions(fallback=False)) as http:
        record = await department(http, name={"es": "hola", "en": "hello"})
        assert data_of(await http.get(f"{PATH}/{record['id']}"))["name"] == "hello"
        assert data_of(await http.get(f"{PATH}/{record['id']}?locale=ca"))["name"] == ""
        assert len(data_of(await http.get(f"{PATH}?locale=ca&filter=name:is_null"))) == 1
        assert data_of(await http.get(f"{PATH}?locale=ca&filter=name:eq:hello")) == []


@pytest.mark.parametrize("query", ["", "?locale=de", "?locale=ar", "?locale=fr", "?locale=xx"])
async def test_a_record_that_is_sent_back_as_it_was_read_changes_nothing(
    database_url: str, query: str
) -> None:
    """P157."""
    async with serving(database_url, Department, Person, locale=OPTIONS) as http:
        values = {
            "name": {"de": "Finanzen", "ar": "مالية", "sw": "", "fr": ""},
            "motto": {"fr": "", "sw": "hesabu"},
            "sign": {"en": "", "ar": "م"},
        }
        record = await department(http, **values)
        read = data_of(await http.get(f"{PATH}/{record['id']}{query}"))
        answer = data_of(await http.patch(f"{PATH}/{record['id']}{query}", json=read))
        assert {**answer, "updated_at": read["updated_at"]} == read
        for name, texts in values.items():
            [stored] = data_of(await http.get(f"{PATH}?select={name}_i18n"))
            assert stored == {f"{name}_i18n": texts}


async def test_a_text_without_a_language_leaves_the_other_translations(database_url: str) -> None:
    async with serving(database_url, Department, Person, locale=OPTIONS) as http:
        record = await department(http)
        path = f"{PATH}/{record['id']}"
        german = data_of(await http.patch(f"{path}?locale=de", json={"name": "Finanzen"}))
        assert german["name_i18n"] == {**FINANCE, "de": "Finanzen"}
        usual = data_of(await http.patch(path, json={"name": "Money", "name_i18n": {"fr": "Argent"}}))
        assert usual["name_i18n"] == {"fr": "Argent"}, "the map wins over the text beside it"
        replaced = data_of(await http.patch(path, json={"name": {"pt_br": "Finanças"}}))
        assert replaced["name_i18n"] == {"pt-BR": "Finanças"}
        bare = await created(http, f"{PATH}?locale=fr", name="Impôts", motto="")
        assert (bare["name_i18n"], bare["motto"]) == ({"fr": "Impôts"}, "")


async def test_a_single_translation_is_set_and_removed_by_its_own_name(database_url: str) -> None:
    async with serving(database_url, Department, Person, locale=OPTIONS) as http:
        record = await department(http)
        path = f"{PATH}/{record['id']}"
        assert data_of(await http.patch(path, json={"name.de": "x"}))["name_i18n"] == {**FINANCE, "de": "x"}
        assert data_of(await http.patch(path, json={"name.de": None}))["name_i18n"] == FINANCE
        for other in ({"name": "y"}, {"name_i18n": {"en": "y"}}):
            assert offenders(await http.patch(path, json={"name.de": "x", **other})) == {"name": "locale"}
        assert offenders(await http.patch(path, json={"name.d": "x"})) == {"name.d": "locale"}
        gone = {"name.en": None, "name.ar": None}
        assert offenders(await http.patch(path, json=gone)) == {"name": "required"}
        assert data_of(await http.get(path))["name_i18n"] == FINANCE
        assert (await created(http, PATH, **{"name.de": "A", "name.en": "B"}))["name_i18n"] == {
            "de": "A",
            "en": "B",
        }


async def test_translations_keep_the_rules_of_their_field(database_url: str) -> None:
    async with serving(database_url, Department, Person, locale=OPTIONS) as http:

        async def wrong(name: Any) -> dict[str, str]:
            return offenders(await http.post(PATH, json={"name": name}))

        assert await wrong({}) == await wrong({"en": ""}) == await wrong("") == {"name": "required"}
        assert await wrong({"en": "x" * 31, "de": 5}) == {"name.en": "max_length", "name.de": "type"}
        assert await wrong({"pt-BR": "a", "pt_br": "b"}) == {"name": "locale"}
        assert await wrong({"e": "a"}) == await wrong({"en": "a", "'": "b"}) == {"name": "locale"}
        assert await wrong({f"aa-x{n}": "a" for n in range(201)}) == {"name": "locale"}
        assert await wrong(5) == await wrong(["en"]) == {"name": "type"}
        assert offenders(await http.post(PATH, json={})) == {"name": "required"}


async def test_a_strict_server_takes_no_other_languages(database_url: str) -> None:
    options = LocaleOptions(supported=("en", "de"), strict=True)
    async with serving(database_url, Department, Person, locale=options) as http:
        refused = await http.post(PATH, json={"name": {"en": "a", "sw": "b"}})
        assert offenders(refused) == {"name.sw": "locale"}
        record = await department(http, name={"en": "a"})
        refused = await http.patch(f"{PATH}/{record['id']}", json={"name.sw": "b"})
        assert offenders(refused) == {"name.sw": "locale"}


async def test_translations_that_are_written_at_once_all_stay(database_url: str) -> None:
    import asyncio

    async with serving(database_url, Department, Person) as http:
        record = await department(http)
        codes = [f"aa-{n}" for n in range(10)]
        path = f"{PATH}/{record['id']}"
        answers = await asyncio.gather(*(http.patch(path, json={f"name.{c}": c}) for c in codes))
        assert {answer.status_code for answer in answers} == {200}
        assert data_of(await http.get(path))["name_i18n"] == {**FINANCE, **{c: c for c in codes}}


async def test_single_translations_do_not_pass_the_most_there_may_be(database_url: str) -> None:
    async with serving(database_url, Department, Person) as http:
        texts = {f"aa-{n}": "a" for n in range(200)}
        record = await department(http, name=texts)
        path = f"{PATH}/{record['id']}"
        assert offenders(await http.patch(path, json={"name.de": "b"})) == {"name": "locale"}
        assert offenders(await http.patch(f"{path}?locale=de", json={"name": "b"})) == {"name": "locale"}
        changed = data_of(await http.patch(path, json={"name.de": "b", "name.aa-0": None}))
        assert len(changed["name_i18n"]) == 200


async def test_missing_translations_are_refused_by_the_code_of_their_own(database_url: str) -> None:
    server = Server(locale=OPTIONS)
    server.register(Department, Person)
    server.pipeline.validate.register(validate.require_locale("name", "en", "ar"), models=[Department])
    async with client(server, database=database_url) as http:
        error = error_of(await http.post(PATH, json={"name": {"en": "a"}}), 422, "MISSING_LOCALE")
        assert [detail["field"] for detail in error["details"]] == ["name.ar"]
        record = await department(http)
        path = f"{PATH}/{record['id']}"
        assert (await http.patch(path, json={"motto": "x"})).status_code == 200
        assert (await http.patch(path, json={"name.de": "x"})).status_code == 200
        error_of(await http.patch(path, json={"name.ar": None}), 422, "MISSING_LOCALE")
        error_of(await http.patch(path, json={"name": {"ar": "x", "en": ""}}), 422, "MISSING_LOCALE")


async def test_tags_tell_languages_apart_and_rows_by_their_first_part(database_url: str) -> None:
    server = Server(locale=OPTIONS)
    server.register(Department, Person)
    async with client(server, database=database_url) as http:
        record = await department(http)
        path = f"{PATH}/{record['id']}"
        german = await http.get(path, headers={"accept-language": "de"})
        arabic = await http.get(path, headers={"accept-language": "ar"})
        tags = [german.headers["etag"], arabic.headers["etag"]]
        assert [tag.rpartition(".")[2] for tag in tags] == ['de"', 'ar"']
        assert len({tag.partition(".")[0] for tag in tags}) == 1
        for tag in tags:
            answer = await http.patch(path, json={"motto": {"en": tag}}, headers={"if-match": tag})
            if tag is tags[0]:
                assert answer.status_code == 200
            else:
                error_of(answer, 412, "PRECONDITION_FAILED")
        current = (await http.get(path, headers={"accept-language": "ar"})).headers["etag"]
        assert (await http.patch(path, json={"motto": "y"}, headers={"if-match": current})).status_code == 200


async def test_no_cache_gives_one_language_for_another(database_url: str) -> None:
    server = Server(locale=OPTIONS)
    server.register(Department, Person)
    server.pipeline.response.register(response.cache(60), models=[Department])
    async with client(server, database=database_url) as http:
        record = await department(http, name={"de": "Finanzen", "ar": "مالية"})
        path = f"{PATH}/{record['id']}"
        tag = (await http.get(path, headers={"accept-language": "de"})).headers["etag"]
        again = {"accept-language": "de", "if-none-match": tag}
        assert (await http.get(path, headers=again)).status_code == 304
        arabic = await http.get(path, headers={**again, "accept-language": "ar"})
        assert data_of(arabic)["name"] == "مالية"
        changed = await http.patch(path, json={"motto": "x"}, headers={"if-match": arabic.headers["etag"]})
        assert changed.status_code == 200


async def test_a_translation_that_is_not_shown_makes_another_tag(database_url: str) -> None:
    async with serving(database_url, Department, Person) as http:
        record = await department(http, motto={"en": "a"})
        path = f"{PATH}/{record['id']}"
        before = (await http.get(path)).headers["etag"]
        changed = await http.patch(path, json={"motto.de": "b"})
        assert data_of(changed)["motto"] == "a"
        assert changed.headers["etag"] != before


async def test_code_can_ask_what_an_answer_would_show(sqlite_url: str) -> None:
    server = Server(locale=OPTIONS)
    server.register(Department, Person)
    async with client(server, database=sqlite_url) as http:
        record = await department(http, motto=None)
        stored = await server.db(Department).read(record["id"])
        assert stored.name == FINANCE
        shown = [server.text(stored, "name", locale) for locale in ("", "de", "ar-SA", "?")]
        assert shown == ["Finance", "Finance", "مالية", "Finance"]
        assert server.text(stored, "motto") is None
        with pytest.raises(DeclarationError, match="no text in several languages"):
            server.text(stored, "id")


class Sealed(Model):
    word: LocaleString | None = field(default=None, writeonly=True)


@pytest.mark.parametrize("guess", [{"word": "x"}, {"word.en": "x"}, {"word.de": None}])
async def test_no_answer_tells_whether_a_guess_is_the_text_that_is_not_shown(
    database_url: str, guess: dict[str, Any]
) -> None:
    async with serving(database_url, Sealed) as http:
        record = await created(http, "/api/sealeds", word={"en": "x"})
        other = await created(http, "/api/sealeds", word={"en": "y", "de": "z"})
        for before in (record, other):
            after = data_of(await http.patch(f"/api/sealeds/{before['id']}", json=guess))
            assert after["updated_at"] > before["updated_at"]


@pytest.mark.parametrize("stored", ['"bare"', "broken", "[1]", '{"de": 5, "en": "kept"}', "7"])
async def test_a_stored_value_that_is_no_map_is_shown_as_it_is(
    database_url: str, stored: str, caplog: pytest.LogCaptureFixture
) -> None:
    """L13: other programs write, too."""
    if stored == "broken" and not database_url.startswith("sqlite"):
        stored = '"broken"'  # PostgreSQL keeps no other JSON
    server = Server(locale=OPTIONS)
    server.register(Department, Person)
    async with client(server, database=database_url) as http:
        record = await department(http)
        await department(http)
        await server.raw_exec("UPDATE departments SET name = ? WHERE id = ?", stored, record["id"])
        shown = {'"bare"': "bare", "broken": "broken", '"broken"': "broken", "[1]": "[1]", "7": "7"}.get(
            stored, "kept"
        )
        for query in ("?sort=id", "?sort=id&locale=de", "?sort=id&filter=name:neq:x&filter[0]=name:not_null"):
            first, *others = data_of(await http.get(f"{PATH}{query}"))
            if "filter" not in query:
                assert (first["name"], first["name_i18n"]) == (shown, {"en": shown})
                assert others
        assert (await server.db(Department).read(record["id"])).name == {"en": shown}
        assert len([r for r in caplog.records if "no map of texts" in r.getMessage()]) == 1


@pytest.mark.parametrize("redacts", [False, True])
async def test_records_in_answers_of_actions_follow_the_language_too(sqlite_url: str, redacts: bool) -> None:
    server = Server(locale=OPTIONS)
    server.register(Department, Person)
    if redacts:
        hides = response.redact_field("motto", lambda ctx: True)
        server.pipeline.response.register(hides, models=[Department])

    @server.action("GET", "/all")
    async def everything(ctx: Context) -> Any:
        return {"departments": await ctx.db(Department).list()}

    @server.action("GET", "/none")
    async def nothing(ctx: Context) -> Any:
        return {"people": await ctx.db(Person).list(), "ok": True}

    async with client(server, database=sqlite_url) as http:
        await department(http)
        assert "content-language" not in (await http.get("/api/none?locale=ar")).headers
        for query, name in (("", "Finance"), ("?locale=ar", "مالية"), ("?locale=!", "Finance")):
            answer = await http.get(f"/api/all{query}")
            language = "ar" if "ar" in query else "en"
            assert (answer.headers["content-language"], answer.headers["vary"]) == (
                language,
                "Accept-Language",
            )
            [shown] = data_of(answer)["departments"]
            assert (shown["name"], shown["name_i18n"]) == (name, FINANCE)
            assert ("motto" in shown) is not redacts


class Clash(Model):
    name: LocaleString
    name_i18n: str = ""


class Searched(Model):
    name: LocaleString = field(searchable=True)
    slug: LocaleString = field(unique=True)


class Walked(Model, cursor_field="name"):
    name: LocaleString = field(sortable=True)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Clash, "there is a field 'name_i18n'"),
        (Searched, "searchable can only be set on text"),
        (Searched, "unique cannot be set on a JSON column"),
        (Walked, "so it cannot have translations"),
    ],
)
def test_what_a_text_with_translations_cannot_be_stops_the_start(model: type[Model], text: str) -> None:
    server = Server(database=":memory:")
    server.register(model)
    with pytest.raises(DeclarationError, match=text):
        server.seal()


@pytest.mark.parametrize(
    "wrong",
    [
        {"supported": ("en", "x!")},
        {"supported": ("de",)},
        {"default": "1"},
        {"suffix": "."},
        {"mode": "sideways"},
        {"fallbacks": {"ca": ("?",)}},
        {"rtl": ("arabic!",)},
    ],
)
def test_options_that_cannot_be_meant_stop_the_start(wrong: Any) -> None:
    with pytest.raises(DeclarationError, match="locale"):
        Server(database=":memory:", locale=LocaleOptions(**wrong))


@pytest.mark.parametrize("fallback", [True, False])
async def test_any_record_comes_back_unchanged_however_it_was_read(database_url: str, fallback: bool) -> None:
    """P157, with texts, languages and ways to read drawn by lot."""
    random = Random(157)
    options = LocaleOptions(
        supported=("en", "de", "ar", "pt-BR"),
        fallbacks={"ar": ("de",)},
        fallback=fallback,
        from_header=True,
    )
    server = Server(locale=options)
    server.register(Department, Person)
    async with client(server, database=database_url) as http:

        def texts(*, needed: bool) -> dict[str, str]:
            codes = random.sample(["en", "de", "ar", "pt-BR", "sw", "zh-Hant"], random.randint(needed, 4))
            drawn = {code: random.choice(["", "a", "b", "ä ", "🙂", '"']) for code in codes}
            return {**drawn, codes[0]: "x"} if needed else drawn

        for _ in range(40):
            motto, sign = (random.choice([None, texts(needed=False)]) for _ in range(2))
            record = await department(http, name=texts(needed=True), motto=motto, sign=sign)
            before = await server.db(Department).read(record["id"])
            path = f"{PATH}/{record['id']}"
            query = random.choice(["", "?locale=de", "?locale=ar", "?locale=pt-br", "?locale=sw"])
            header = {"accept-language": random.choice(["ar", "pt-PT, de", "*", "xx"])}
            read = data_of(await http.get(path + query, headers=header))
            sent = (
                read if random.random() < 0.5 else {n: v for n, v in read.items() if not n.endswith("_i18n")}
            )
            answer = data_of(await http.patch(path + query, json=sent, headers=header))
            after = await server.db(Department).read(record["id"])
            assert (after.name, after.motto, after.sign) == (before.name, before.motto, before.sign), sent
            assert {**answer, "updated_at": read["updated_at"]} == read
