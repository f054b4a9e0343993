"""Whole requests: any body, header, path or query string, on every route there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote, quote_from_bytes

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.kit.asgi import Call
from tests.kit.fuzz.bodies import (
    KNOWN,
    NASTY_TEXT,
    TABLES,
    THING,
    bodies,
    near_valid_bodies,
    rarely,
    sometimes,
)

CURRENT = b"CURRENT-ETAG"  # stands for the version the record has now

METHODS = ("GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "PUT")
STRANGE_METHODS = ("TRACE", "CONNECT", "PROPFIND", "get", "X", "PATCHY", "GE T", "*", "")


segments = st.one_of(
    st.sampled_from(
        (
            *(
                "",
                ".",
                "..",
                "%2e%2e",
                "%2f",
                "%2F%2f",
                "%00",
                "a%00b",
                "%ff",
                "%c3%28",
                "%ed%a0%80",
                "%",
                "%zz",
            ),
            *(
                "%25",
                "%3f",
                "%23",
                "singleton",
                "null",
                "*",
                "~",
                "a" * 300,
                "a" * 9_000,
                "%F0%9F%98%80",
                ";x=1",
            ),
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
    return (
        st.sampled_from((*NASTY_TEXT, *more)) | st.text(max_size=12) | st.integers(-(2**65), 2**65).map(str)
    )


_names = st.sampled_from(
    (*THING, "id", "created_at", "deleted_at", "is_deleted", "slug", "label", "title", "secret")
)
_filters = st.builds(
    "{}:{}:{}".format,
    _names | st.text(max_size=6),
    st.sampled_from(("eq", "eq", "eq", "eq", "EQ", "gt", "", "like", "in")),
    _values(),
)
_sorts = st.lists(
    st.builds(
        "{}{}".format, _names, st.sampled_from(("", ":asc", ":desc", ":DESC", ":", ":asc:desc", " asc"))
    ),
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
        f"{quote(key, errors='surrogatepass')}={quote(value, errors='surrogatepass')}"
        for key, value in found * repeat
    ).encode()


_latin = st.binary(max_size=24)
NASTY_HEADERS: Mapping[bytes, Sequence[bytes]] = {
    b"content-type": (
        *(
            b"application/json",
            b"application/json; charset=utf-8",
            b"application/vnd.api+json",
            b"text/plain",
        ),
        *(
            b"",
            b"application/json;charset=utf-16",
            b"multipart/form-data",
            b"multipart/form-data; boundary=x",
        ),
    ),
    b"content-length": (b"0", b"1", b"-1", b"abc", b"", b"9" * 30, b"\xb2", b"1e3", b"999999"),
    b"content-encoding": (b"gzip", b"identity", b"IDENTITY", b"br, gzip", b""),
    b"if-match": (
        CURRENT,
        CURRENT,
        CURRENT + b', "x"',
        b"*",
        b'"x"',
        b"",
        b"W/" + CURRENT,
        b",,,",
        b'"',
        b"\xff",
    ),
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
    return Call(
        draw(st.sampled_from(("GET", "GET", "GET", "HEAD"))), f"/api/{table}".encode(), draw(queries())
    )
