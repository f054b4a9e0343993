"""What a hostile, broken or merely unlucky client might send."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_from_bytes

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.fuzz.wire import Call

KNOWN = "KNOWN-ID-"  # stands for the id of a record that was created earlier
CURRENT = b"CURRENT-ETAG"  # stands for the version the record has now

METHODS = ("GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "PUT")
STRANGE_METHODS = ("TRACE", "CONNECT", "PROPFIND", "get", "X", "PATCHY", "GE T", "*", "")

NASTY_TEXT = (
    *("", " ", "null", "true", "0", "-1", "1e400", "NaN", "é", "ß" * 50, "😀", "a" * 300, "x" * 5_000),
    *("' OR 1=1 --", '"; DROP TABLE things; --', "%", "_", "\\", "\n\r\t", "\x7f", "\u2028", "\ufeff"),
    *("\ufdd0", "\U0010ffff", "../../etc/passwd", "${7*7}", "$1", "?", ":name", "s", "m", "red", "draft"),
    *("posted", "singleton", "2024-02-30", "0000-01-01", "0001-01-01", "9999-12-31", "2024-05-31"),
    *("2024-05-31T09:30:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"),
    *("2024-05-31T24:00:00Z", "2024-05-31T09:30:00.1234567Z", "24:00:00", "23:59:60", "09:30", "09:30Z"),
    *("123e4567-e89b-12d3-a456-426614174000", "urn:uuid:123e4567-e89b-12d3-a456-426614174000"),
    *("{123e4567e89b12d3a456426614174000}", "١" * 32, "aGk=", "aGk", "====", "0.1", "1.10", "-0", "1E+3"),
    *("1e-1000", "1e999", "9" * 1_001, "." + "9" * 400, "1_000", "٣", "+5", "Infinity"),
)
NASTY_NUMBERS = (
    *("0", "-0", "-0.0", "1", "1.0", "1.5", "0.1", "1e2", "5e-324", "1e308", "1e309", "-1e400", "1e-400"),
    *(str(2**31), str(2**53 + 1), str(2**63 - 1), str(2**63), str(-(2**63)), str(-(2**63) - 1)),
    *(str(2**64), "9" * 400, "9" * 5_000, "0." + "1" * 400, "01", "1.", ".5", "+1", "1e", "0x1", "--1"),
)
NASTY_TOKENS = (
    *("NaN", "Infinity", "-Infinity", "nul", "True", "undefined", "'a'", '"\\ud800"', '"\\ud83d\\ude00"'),
    *('"\\u0000"', '"a\\u0000b"', '"\\x41"', '"\t"', '"\\u00"', '"unfinished', "[1,]", '{"a":1,}', "{,}"),
    *('{"a":1,"a":2}', '{"a":{"b":1,"b":2}}', "/* */1", "[" * 2_000, "\ufeff{}", ""),
)


def nested(depth: int, mixed: bool) -> str:
    opening, closing = ('{"a":', "}") if mixed else ("[", "]")
    return opening * depth + "1" + closing * depth


# Ones in so many; `integers` would give its smallest value far more often.
rarely = st.sampled_from((False,) * 19 + (True,))
sometimes = st.sampled_from((False,) * 9 + (True,))
depths = st.sampled_from((1, 5, 50, 99, 100, 101, 120, 200, 255, 256, 300, 500, 900, 1_100, 5_000, 20_000))
scalar_text = st.one_of(
    st.sampled_from(NASTY_TEXT).map(json.dumps),
    st.text(max_size=30).map(json.dumps),
    st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=30).map(
        lambda text: json.dumps(text, ensure_ascii=False)
    ),
    st.sampled_from(NASTY_NUMBERS),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(json.dumps),
    st.sampled_from(("true", "false", "null", "[]", "{}")),
    st.sampled_from(NASTY_TOKENS),
)


def _object(pairs: Sequence[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in pairs) + "}"


json_text: SearchStrategy[str] = st.recursive(
    scalar_text,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: "[" + ",".join(items) + "]"),
        st.lists(st.tuples(st.sampled_from(("a", "b", "name", "")) | st.text(max_size=8), inner), max_size=4).map(
            _object
        ),
    ),
    max_leaves=8,
) | st.builds(nested, depths, st.booleans())

_texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=20)
_instants = st.datetimes().map(lambda value: value.isoformat() + "Z")
_plain_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip

THING: dict[str, SearchStrategy[Any]] = {
    "name": _texts,
    "count": st.integers(-(2**63), 2**63 - 1),
    "ratio": st.floats(allow_nan=False, allow_infinity=False),
    "active": st.booleans(),
    "price": st.none() | st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    "at": st.none() | _instants,
    "day": st.none() | st.dates().map(str),
    "clock": st.none() | st.times().map(str),
    "ref": st.none() | st.uuids().map(str),
    "blob": st.sampled_from((None, "", "aGk=", "AAEC/w==")),
    "size": st.sampled_from(("s", "m", "l")),
    "level": st.sampled_from((None, 1, 2, 3)),
    "colour": st.sampled_from((None, "red", "blue")),
    "payload": st.dictionaries(_texts, _plain_json, max_size=3),
    "tags": st.lists(_texts, max_size=3),
    "anything": st.none() | st.lists(_plain_json, max_size=3),
    "address": st.none() | st.fixed_dictionaries({"street": _texts}, optional={"number": st.integers(0, 99)}),
    "contact": st.none() | st.fixed_dictionaries({"name": _texts, "age": st.none() | st.integers(0, 99)}),
}
VALID: dict[str, dict[str, SearchStrategy[Any]]] = {
    "things": THING,
    "notes": {
        "slug": st.text("abcdefghij", min_size=1, max_size=4),
        "bodyText": _texts,
        "stars": st.none() | st.integers(1, 5),
        "secret": st.none() | _texts,
        "internal": _texts,
        "serial": st.integers(0, 9),
        "origin": _texts,
        "thing_id": st.none() | st.sampled_from(("x", KNOWN + "0")),
        "id": _texts,
    },
    "docs": {
        "title": st.text("abc", min_size=1),
        "status": st.sampled_from(("draft", "draft", "draft", "posted")),
        "low": st.integers(-5, 5),
        "high": st.integers(-5, 15),
    },
    "flags": {"label": st.text("abcdef", min_size=1, max_size=3)},
    "settings": {
        "theme": _texts,
        "limits": st.dictionaries(_texts, st.integers(-(2**63), 2**63 - 1), max_size=3),
    },
    "orders": {"thing": _texts, "amount": st.integers(-9, 9), "notes": st.lists(_texts, max_size=2)},
    "parrot": {"a": _plain_json},
}
REQUIRED = {"things": {"name"}, "notes": {"slug"}, "docs": {"title"}, "flags": {"label"}, "orders": {"thing"}}
TABLES = ("things", "notes", "docs", "flags", "settings")


@st.composite
def valid_fields(draw: DrawFn, table: str, *, partly: bool) -> dict[str, Any]:
    """A body the model takes, or on PATCH any part of one."""
    fields = VALID[table]
    needed = set() if partly else REQUIRED.get(table, set())
    chosen = draw(st.sets(st.sampled_from(sorted(fields))))
    return {name: draw(fields[name]) for name in fields if name in chosen | needed}


@st.composite
def near_valid_bodies(draw: DrawFn, table: str, *, partly: bool) -> bytes:
    """A body the model takes, with nothing, a field, or a few bytes of it spoiled."""
    fields = draw(valid_fields(table, partly=partly))
    pairs = [(name, json.dumps(value, ensure_ascii=draw(st.booleans()))) for name, value in fields.items()]
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 1, 2)))):
        name = draw(st.sampled_from(sorted(VALID[table])) | st.text(max_size=5))
        spoiled = (name, draw(json_text))
        match draw(st.sampled_from(("replace", "replace", "add", "drop"))):
            case "replace":
                pairs = [spoiled if key == name else (key, value) for key, value in pairs]
                pairs = pairs if any(key == name for key, _ in pairs) else [*pairs, spoiled]
            case "add":
                pairs.append(spoiled)
            case _:
                pairs = [(key, value) for key, value in pairs if key != name]
    body = _object(pairs).encode("utf-8", "surrogatepass")
    if draw(sometimes):
        at = draw(st.integers(0, len(body)))
        body = body[:at] + draw(st.binary(max_size=3)) + body[at + draw(st.integers(0, 3)) :]
    return body


@st.composite
def bodies(draw: DrawFn, table: str, *, partly: bool) -> bytes:
    match draw(st.sampled_from(("near", "near", "near", "near", "json", "bytes", "fixed"))):
        case "near":
            return draw(near_valid_bodies(table, partly=partly))
        case "json":
            return draw(json_text).encode("utf-8", "surrogatepass")
        case "bytes":
            return draw(st.binary(max_size=200))
        case _:
            big = b'{"name":"' + b"x" * 250_000 + b'"}'
            return draw(st.sampled_from((b"", b"{}", b"[]", b"null", b" ", b"\xff\xfe{\x00}\x00", b"\x80", big)))


segments = st.one_of(
    st.sampled_from(
        (
            *("", ".", "..", "%2e%2e", "%2f", "%2F%2f", "%00", "a%00b", "%ff", "%c3%28", "%ed%a0%80", "%", "%zz"),
            *("%25", "%3f", "%23", "singleton", "null", "*", "~", "a" * 300, "a" * 9_000, "%F0%9F%98%80", ";x=1"),
            *("rename", "things", "settings", "1", "-1", "index.html", "deep", "hello.txt"),
        )
    ),
    st.text(max_size=12).map(lambda text: quote(text, errors="surrogatepass")),
    st.binary(max_size=12).map(quote_from_bytes),
    st.text("./%20abc0", max_size=12),
)
known_ids = st.integers(0, 30).map(lambda n: f"{KNOWN}{n}")
record_ids = known_ids | known_ids | known_ids | segments

strange_prefixes = st.sampled_from(("", "/API", "//api", "/api/..", "/health", "/live", "/%61pi", "/api%2f"))


@st.composite
def any_path(draw: DrawFn) -> bytes:
    parts = draw(st.lists(segments | known_ids, max_size=3))
    match draw(st.sampled_from(("api", "api", "api", "static", "strange"))):
        case "api":
            start = "/api/" + draw(st.sampled_from((*TABLES, "parrot", "slowly", "orders", "nothing")))
        case "static":
            start = "/static"
        case _:
            start = draw(strange_prefixes)
    path = start + "".join(f"/{part}" for part in parts)
    return (path or "/").encode("latin-1", "replace")


def _values(*more: str) -> SearchStrategy[str]:
    return st.sampled_from((*NASTY_TEXT, *more)) | st.text(max_size=12) | st.integers(-(2**65), 2**65).map(str)


_names = st.sampled_from((*THING, "id", "created_at", "deleted_at", "is_deleted", "slug", "label", "title", "secret"))
_filters = st.builds(
    "{}:{}:{}".format,
    _names | st.text(max_size=6),
    st.sampled_from(("eq", "eq", "eq", "eq", "EQ", "gt", "", "like", "in")),
    _values(),
)
_sorts = st.lists(
    st.builds("{}{}".format, _names, st.sampled_from(("", ":asc", ":desc", ":DESC", ":", ":asc:desc", " asc"))),
    min_size=1,
    max_size=12,
).map(",".join)
_pairs = st.one_of(
    st.tuples(st.just("filter"), _filters),
    st.tuples(st.just("filter"), st.builds("{}:eq:{}".format, _names, _values())),
    st.tuples(st.just("sort"), _sorts),
    st.tuples(st.just("page"), _values("1", "2", "1000000000", "1000000001", "9" * 30)),
    st.tuples(st.just("limit"), _values("1", "5", "200", "201", "0", "1e3")),
    st.tuples(st.sampled_from(("include", "select", "q", "cursor", "filter[", "")), _values()),
    st.tuples(st.text(max_size=6), st.text(max_size=6)),
)


@st.composite
def queries(draw: DrawFn) -> bytes:
    """A query string: mostly the grammar with hostile values, sometimes mere bytes."""
    if draw(sometimes):
        return draw(st.binary(max_size=60) | st.binary(max_size=40).map(lambda b: b"filter=name:eq:" + b))
    found = draw(st.lists(_pairs, max_size=5))
    repeat = draw(st.sampled_from((1, 1, 1, 1, 60)))
    return "&".join(
        f"{quote(key, errors='surrogatepass')}={quote(value, errors='surrogatepass')}" for key, value in found * repeat
    ).encode()


_latin = st.binary(max_size=24)
NASTY_HEADERS: Mapping[bytes, Sequence[bytes]] = {
    b"content-type": (
        *(b"application/json", b"application/json; charset=utf-8", b"application/vnd.api+json", b"text/plain"),
        *(b"", b"application/json;charset=utf-16", b"multipart/form-data", b"multipart/form-data; boundary=x"),
    ),
    b"content-length": (b"0", b"1", b"-1", b"abc", b"", b"9" * 30, b"\xb2", b"1e3", b"999999"),
    b"content-encoding": (b"gzip", b"identity", b"IDENTITY", b"br, gzip", b""),
    b"if-match": (CURRENT, CURRENT, CURRENT + b', "x"', b"*", b'"x"', b"", b"W/" + CURRENT, b",,,", b'"', b"\xff"),
    b"if-none-match": (CURRENT, b"*", b'"x"'),
    b"x-request-id": (b"abc", b"", b"x" * 500, b"a b", b"\xe9", b"\x01", b"a\x0bb"),
    b"traceparent": (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", b"", b"\xff", b"00-0-0-0"),
    b"range": (b"bytes=0-1", b"bytes=9-1", b"bytes=-", b"bytes=0-0,2-3", b"lines=1", b"bytes=99999999999-"),
    b"if-modified-since": (b"Wed, 21 Oct 2015 07:28:00 GMT", b"yesterday", b"\xff"),
    b"host": (b"", b"[::1", b"a:b", b"\xff", b"x" * 300),
    b"expect": (b"100-continue", b"200-ok"),
    b"accept": (b"text/html", b"*/*;q=x", b""),
    b"transfer-encoding": (b"chunked", b"gzip"),
    b"upgrade": (b"websocket", b"h2c"),
}
_header = st.one_of(
    st.sampled_from(sorted(NASTY_HEADERS)).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from(NASTY_HEADERS[name]) | _latin)
    ),
    st.tuples(st.from_regex(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,20}", fullmatch=True), _latin),
)
headers = st.lists(_header, max_size=6).map(tuple)
_no_headers: SearchStrategy[tuple[tuple[bytes, bytes], ...]] = st.just(())
_matching = st.sampled_from((((b"if-match", CURRENT),), ((b"if-match", b'"stale"'),)))

Target = tuple[str, bytes, str]  # method, path, whose fields the body has


@st.composite
def targets(draw: DrawFn) -> Target:
    """A route that exists, with the method it wants or any other."""
    table = draw(st.sampled_from(TABLES))
    item = f"/api/{table}" if table == "settings" else f"/api/{table}/{draw(record_ids)}"
    method, path, shape = draw(
        st.sampled_from(
            (
                ("POST", f"/api/{table}", table),
                ("POST", f"/api/{table}", table),
                ("PATCH", item, table),
                ("PATCH", item, table),
                ("GET", item, table),
                ("GET", f"/api/{table}", table),
                ("DELETE", item, table),
                ("POST", "/api/orders", "orders"),
                ("POST", f"/api/things/{draw(record_ids)}/rename", "orders"),
                ("PUT", f"/api/parrot/{draw(segments)}", "parrot"),
                ("GET", f"/api/slowly/{draw(segments)}/and/{draw(segments)}", "orders"),
                ("DELETE", "/api/nothing", "orders"),
                ("GET", draw(st.sampled_from(("/health", "/live", "/ready", "/static/hello.txt"))), "orders"),
            )
        )
    )
    if draw(sometimes):
        method = draw(st.sampled_from((*METHODS, *STRANGE_METHODS)))
    return method, path.encode("latin-1", "replace"), shape


@st.composite
def body_calls(draw: DrawFn) -> Call:
    """Any body on the routes that read one; torn into chunks, or never finished."""
    table = draw(st.sampled_from((*TABLES, "orders", "parrot")))
    match table:
        case "orders" | "settings":
            method, path = ("POST" if table == "orders" else "PATCH"), f"/api/{table}"
        case "parrot":
            method, path = "PUT", "/api/parrot/word"
        case _:
            method = draw(st.sampled_from(("POST", "PATCH")))
            path = f"/api/{table}" if method == "POST" else f"/api/{table}/{draw(known_ids)}"
    body = draw(bodies(table, partly=method == "PATCH"))
    cut = tuple(draw(st.lists(st.integers(0, 300), max_size=3)))
    return Call(method, path.encode(), b"", draw(_no_headers | _matching), body, cut, draw(rarely))


@st.composite
def header_calls(draw: DrawFn) -> Call:
    method, path, table = draw(targets())
    body = draw(near_valid_bodies(table, partly=method == "PATCH"))
    return Call(method, path, b"", draw(headers), body)


@st.composite
def path_calls(draw: DrawFn) -> Call:
    method = draw(st.sampled_from((*METHODS, *METHODS, *STRANGE_METHODS)))
    path, table = draw(any_path()), draw(st.sampled_from(TABLES))
    return Call(method, path, b"", (), draw(near_valid_bodies(table, partly=True)))


@st.composite
def query_calls(draw: DrawFn) -> Call:
    table = draw(st.sampled_from((*TABLES, "things", "things", "slowly/a/and/b", "things/KNOWN-ID-1")))
    return Call(draw(st.sampled_from(("GET", "GET", "GET", "HEAD"))), f"/api/{table}".encode(), draw(queries()))
