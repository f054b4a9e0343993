"""Bodies a hostile, broken or merely unlucky client might send."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

KNOWN = "KNOWN-ID-"  # stands for the id of a record that was created earlier

NASTY_TEXT = (
    *("", " ", "null", "true", "0", "-1", "1e400", "NaN", "é", "ß" * 50, "😀", "a" * 300, "x" * 5_000),
    *("' OR 1=1 --", '"; DROP TABLE things; --', "%", "_", "\\", "\n\r\t", "\x7f", "\u2028", "\ufeff"),
    *("\ufdd0", "\U0010ffff", "../../etc/passwd", "${7*7}", "$1", "?", ":name", "s", "m", "red", "draft"),
    *("posted", "singleton", "2024-02-30", "0000-01-01", "0001-01-01", "9999-12-31", "2024-05-31"),
    *("2024-05-31T09:30:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"),
    *("2024-05-31T24:00:00Z", "2024-05-31T09:30:00.1234567Z", "24:00:00", "23:59:60", "09:30", "09:30Z"),
    *("123e4567-e89b-12d3-a456-426614174000", "urn:uuid:123e4567-e89b-12d3-a456-426614174000"),
    *("{123e4567e89b12d3a456426614174000}", "١" * 32, "aGk=", "aGk", "====", "0.1", "1.10", "-0", "1E+3"),
    *(
        "1e-1000",
        "1e999",
        "9" * 1_001,
        "." + "9" * 400,
        "1_000",
        "٣",
        "+5",
        "Infinity",
        "\x00",
        "a\x00b",
        "\ud800",
    ),
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
    st.text(alphabet=st.characters(codec="utf-8"), max_size=30).map(
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
        st.lists(
            st.tuples(st.sampled_from(("a", "b", "name", "")) | st.text(max_size=8), inner), max_size=4
        ).map(_object),
    ),
    max_leaves=8,
) | st.builds(nested, depths, st.booleans())

_texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
_instants = st.datetimes().map(lambda value: value.isoformat() + "Z")
_integers = st.integers(-(2**63), 2**63 - 1)
_floats = st.floats(allow_nan=False, allow_infinity=False)
_plain_json = st.recursive(
    st.none() | st.booleans() | _integers | _floats | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)

THING: dict[str, SearchStrategy[Any]] = {
    "name": _texts,
    "count": _integers,
    "ratio": _floats,
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
        "limits": st.dictionaries(_texts, _integers, max_size=3),
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
            return draw(
                st.sampled_from((b"", b"{}", b"[]", b"null", b" ", b"\xff\xfe{\x00}\x00", b"\x80", big))
            )
