"""Random applications and data for the query tests: the same seed gives the same world."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from random import Random
from types import new_class
from typing import Any, Literal
from uuid import UUID

from maniflex import (
    LocaleOptions,
    LocaleString,
    Model,
    Server,
    WithDeletedAt,
    WithIsDeleted,
    belongs_to,
    has_many,
    many_to_many,
)
from maniflex import field as typed_field
from maniflex.encryption import MemoryKeyProvider
from maniflex.testing import FakeClock

model_field: Any = typed_field  # options come from a dictionary here
START = datetime(2026, 1, 1, tzinfo=UTC)
KINDS: dict[str, Any] = {
    "text": str,
    "int": int,
    "float": float,
    "bool": bool,
    "decimal": Decimal,
    "datetime": datetime,
    "date": date,
    "time": time,
    "uuid": UUID,
    "choice": Literal["a", "b", "c"],
    "rank": Literal[1, 2, 3],
    "translated": LocaleString,
    "encrypted": str,
}
KEYS = {"default": bytes(range(32)), "search": bytes(range(32, 64))}
MODES: tuple[Any, ...] = ("split", "resolve", "dynamic", {"mode": "split", "default": "de"})
LOCALES = ("en", "de", "pt-BR", "pt", "ar")
POOLS: dict[str, Sequence[Any]] = {
    "text": [
        "", "a", "A", "b", "ab", "aB", "null", "100%", "a_b", "a%b", "*", "?x", "[a]", "back\\slash",
        "ä", "Ä", "ß", "ſ", "İ", "I", "i", "x,y", 'say "hi"', "a:b", "naïve café",
        "\U0001f600", "\uffff", " ", "\n", "'",
    ],
    "int": [0, 1, 1, 2, -1, 7, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)],
    "float": [0.0, 1.0, 1.0, -1.5, 0.1, 0.2, 0.30000000000000004, 1e300, -1e300, 1e-300, 5e-324, 123456.789],
    "bool": [True, False],
    "decimal": [
        Decimal(text)
        for text in ("0", "1", "1.0", "1.00", "-1.5", "10", "9", "0.1", "1" + "0" * 20 + ".01", "0.0000001")
    ],
    "datetime": [
        START,
        START + timedelta(microseconds=1),
        START + timedelta(seconds=1),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2, 1, 1, tzinfo=UTC),
        datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    ],
    "date": [date(2026, 1, 1), date(2026, 1, 2), date(1, 1, 1), date(9999, 12, 31), date(2024, 2, 29)],
    "time": [time(0), time(12, 30), time(12, 30, 0, 1), time(23, 59, 59, 999_999)],
    "uuid": [UUID(int=0), UUID(int=1), UUID(int=2**128 - 1), UUID("0190b3a8-7c2e-7d11-8f3a-0123456789ab")],
    "choice": ["a", "b", "c"],
    "rank": [1, 2, 3],
    "encrypted": ["", "a", "A", "b", "ä", "Ä", "null", "x,y", 'say "hi"', "\U0001f600", "'", "100%"],
    "translated": [
        {"en": "a"}, {"en": "A", "de": "ä"}, {"de": "b", "en": ""}, {"pt-BR": "x,y", "pt": 'say "hi"'}, {},
        {"sw": "outside"}, {"en": "100%", "ar": "\U0001f600"}, {"zu": "", "de": "back\\slash"}, {"en": "'"},
    ],
}  # fmt: skip
NAMES = ("Alpha", "Beta", "Gamma")


@dataclass
class Declared:
    """A model of a world, as far as writing queries for it needs."""

    cls: type[Model]
    table: str
    kinds: dict[str, str] = field(default_factory=dict)  # API name → kind
    attributes: dict[str, str] = field(default_factory=dict)  # attribute → kind
    filterable: list[str] = field(default_factory=lambda: ["id", "created_at"])
    sortable: list[str] = field(default_factory=lambda: ["id", "created_at"])
    nullable: set[str] = field(default_factory=set)
    references: dict[str, str] = field(default_factory=dict)  # attribute of a key → model name
    relations: dict[str, str] = field(default_factory=dict)  # relation → model name
    cursor: str = ""
    ids: list[str] = field(default_factory=list)


@dataclass
class World:
    """Models and what is done to fill them."""

    models: dict[str, Declared]
    writes: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)  # verb, model, values

    def server(self) -> tuple[Server, FakeClock]:
        clock = FakeClock(START)
        server = Server(clock=clock, static_disabled=True, locale=LocaleOptions(rtl=("ar",)))
        server.set_key_provider(MemoryKeyProvider(KEYS, index_key="search"))
        server.register(*(model.cls for model in self.models.values()))
        return server, clock

    async def fill(self, server: Server, clock: FakeClock) -> None:
        async with server.transaction():
            for number, (verb, name, values) in enumerate(self.writes):
                clock.advance(timedelta(milliseconds=number % 3))
                records = server.db(self.models[name].cls)
                if verb == "create":
                    await records.create(values)
                elif verb == "update":
                    await records.update(values["id"], {k: v for k, v in values.items() if k != "id"})
                else:
                    await records.delete(values["id"])


def world(random: Random, rows: int = 40) -> World:
    """A world of three models and a junction."""
    made = World({name: _model(random, name) for name in NAMES})
    made.models["Link"] = _link()
    for name in (*NAMES, "Link"):
        for number in range(rows):
            made.models[name].ids.append(f"{name.lower()}-{number:03}")
    for name in NAMES:
        made.writes += [_row(random, made, name, record_id) for record_id in made.models[name].ids]
    for name in (*NAMES, "Link"):
        verb = "create" if name == "Link" else "update"
        made.writes += [(verb, name, _keys(random, made, name, record)) for record in made.models[name].ids]
    for name in NAMES:
        if issubclass(made.models[name].cls, WithDeletedAt | WithIsDeleted):
            gone = random.sample(made.models[name].ids, rows // 5)
            made.writes += [("delete", name, {"id": record_id}) for record_id in gone]
    return made


def _model(random: Random, name: str) -> Declared:
    annotations: dict[str, Any] = {}
    body: dict[str, Any] = {"__module__": __name__, "__annotations__": annotations}
    declared = Declared(Model, f"{name.lower()}_rows")
    for number in range(random.randint(5, 10)):
        kind = random.choice(list(KINDS))
        attribute = f"{kind}_{number}"
        options, is_filterable, is_sortable = _options(random, kind)
        nullable = random.random() < 0.5
        api = attribute
        if random.random() < 0.2:
            api = options["alias"] = f"{kind}No{number}"
        if random.random() < 0.2:
            options["column"] = f"c{number}"
        annotations[attribute] = KINDS[kind] | None if nullable else KINDS[kind]
        filled = {"default_factory": LocaleString} if kind == "translated" else {}
        body[attribute] = model_field(**options, **({"default": None} if nullable else filled))
        declared.kinds[api] = declared.attributes[attribute] = kind
        declared.filterable += [api] if is_filterable else []
        declared.sortable += [api] if is_sortable else []
        if nullable:
            declared.nullable |= {api, attribute}
        elif is_sortable and not declared.cursor and kind != "translated":
            declared.cursor = api
    for hidden in ("hidden", "writeonly"):
        annotations[f"{hidden}_text"] = str
        body[f"{hidden}_text"] = model_field(default="x", **{hidden: True})
        declared.kinds[f"{hidden}_text"] = "text"
    _relate(random, name, annotations, body, declared)
    mixins = random.choice([(), (WithDeletedAt,), (WithIsDeleted,)])
    declared.cursor = declared.cursor or "created_at"
    keywords = {"table": declared.table, "cursor_field": declared.cursor}
    declared.cls = new_class(name, (Model, *mixins), keywords, lambda namespace: namespace.update(body))
    declared.kinds |= {"id": "text", "created_at": "datetime"}
    if WithDeletedAt in mixins:
        declared.kinds["deleted_at"] = "datetime"
        declared.filterable.append("deleted_at")
        declared.nullable.add("deleted_at")
    if WithIsDeleted in mixins:
        declared.kinds["is_deleted"] = "bool"
        declared.filterable.append("is_deleted")
    return declared


def _options(random: Random, kind: str) -> tuple[dict[str, Any], bool, bool]:
    """The options of a field of this kind, and whether clients filter and sort by it."""
    if kind == "encrypted":
        index = random.choice([False, True, "casefold"])
        return {"encrypted": True, "blind_index": index} if index else {"encrypted": True}, bool(index), False
    options: dict[str, Any] = {"locale": random.choice(MODES)} if kind == "translated" else {}
    options["filterable"] = random.random() < 0.9
    options["sortable"] = random.random() < 0.9
    return options, options["filterable"], options["sortable"]


def _relate(
    random: Random, name: str, annotations: dict[str, Any], body: dict[str, Any], declared: Declared
) -> None:
    """A key to each of the others and to itself, the way back, and a junction."""
    for target in NAMES:
        key = f"{target.lower()}_id"
        annotations[key] = str | None
        body[key] = model_field(default=None, relation=target, filterable=True)
        declared.references[key] = target
        declared.relations[target.lower()] = target
        declared.kinds[key] = "text"
        declared.filterable.append(key)
        declared.nullable.add(key)
        back = f"of_{target.lower()}"
        annotations[back] = f"list['{target}']"
        body[back] = has_many(key=f"{name.lower()}_id")
        declared.relations[back] = target
    if name in ("Alpha", "Beta"):
        other = "Beta" if name == "Alpha" else "Alpha"
        annotations["linked"] = f"list['{other}']"
        body["linked"] = many_to_many(through="Link")
        declared.relations["linked"] = other
    annotations["second_id"] = str | None
    body["second_id"] = model_field(default=None, relation=None)
    annotations["second"] = f"'{NAMES[0]} | None'"
    body["second"] = belongs_to(key="second_id")
    declared.references["second_id"] = NAMES[0]
    declared.relations["second"] = NAMES[0]


def _link() -> Declared:
    body: dict[str, Any] = {
        "__module__": __name__,
        "__annotations__": {"alpha_id": str, "beta_id": str},
        "alpha_id": model_field(filterable=True),
        "beta_id": model_field(filterable=True),
    }
    cls = new_class("Link", (Model,), {"table": "links"}, lambda namespace: namespace.update(body))
    return Declared(
        cls,
        "links",
        kinds={"alpha_id": "text", "beta_id": "text", "id": "text", "created_at": "datetime"},
        filterable=["alpha_id", "beta_id", "id"],
        sortable=["id", "created_at"],
        references={"alpha_id": "Alpha", "beta_id": "Beta"},
        relations={"alpha": "Alpha", "beta": "Beta"},
    )


def _row(random: Random, made: World, name: str, record_id: str) -> tuple[str, str, dict[str, Any]]:
    model = made.models[name]
    values: dict[str, Any] = {"id": record_id}
    for attribute, kind in model.attributes.items():
        absent = attribute in model.nullable and random.random() < 0.3
        values[attribute] = None if absent else random.choice(POOLS[kind])
    return "create", name, values


def _keys(random: Random, made: World, name: str, record_id: str) -> dict[str, Any]:
    """Whom the record refers to, once they are all there."""
    references = made.models[name].references
    chosen = {key: random.choice(made.models[target].ids) for key, target in references.items()}
    kept = {key: value for key, value in chosen.items() if name == "Link" or random.random() < 0.7}
    return {"id": record_id, **kept}


def spelled(random: Random, kind: str, value: Any) -> str:
    """The value as a client might write it."""
    match kind:
        case "bool":
            return random.choice(["true", "1", "TRUE"] if value else ["false", "0", "False"])
        case "datetime":
            return str(value.isoformat(timespec=random.choice(["auto", "seconds"])))
        case "date" | "time":
            return str(value.isoformat())
        case "float":
            return repr(value)
        case "translated":
            return str(random.choice([*value.values(), "nothing"]))
        case _:
            return str(value)


def noise(random: Random) -> str:
    """A value that is probably of no type at all."""
    return "".join(random.choices(string.printable + "äß\U0001f600", k=random.randint(0, 6))).replace(
        "\x00", ""
    )
