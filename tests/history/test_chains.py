"""Random chains of migrations with writes in between: the past is told as it was, or refused; never wrong.

An oracle keeps every state of every record by fields that no rename changes. What `as_of`, filters, sorts,
versions and restores answer is compared with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from operator import eq, gt
from pathlib import Path
from types import new_class
from typing import Any

import httpx
import pytest

from maniflex import Model, Server
from maniflex import field as column
from maniflex.db.port import Adapter
from maniflex.errors import ManiflexError
from maniflex.schema.apply import Migrator
from maniflex.schema.make import MakeOptions, Maker
from maniflex.sql.statement import Sql
from maniflex.testing import client
from tests.kit.migrations import on_adapter

TYPES: dict[str, Any] = {"int": int, "text": str, "decimal": Decimal, "float": float, "bool": bool}
RETYPES = {
    "int": ("text", "decimal", "float", "bool"),
    "text": ("int", "decimal", "float"),
    "decimal": ("text", "float"),
    "float": ("decimal",),
    "bool": ("int",),
}
TOTAL = {
    ("int", "text"),
    ("int", "decimal"),
    ("int", "float"),
    ("int", "bool"),
    ("bool", "int"),
    ("decimal", "text"),
    ("decimal", "float"),
}
NAMES = ("a", "b", "c", "d", "e", "f")
UNKNOWN = object()


@dataclass(frozen=True)
class Field:
    """A field of the model; its identity stays what it is when its name or type changes."""

    identity: int
    name: str
    kind: str
    default: Any = None
    renamed_from: str | None = None


@dataclass
class Version:
    """A state of a record as it was written: by identity, the kind and the value."""

    at: datetime
    number: int
    values: dict[int, tuple[str, Any]] | None  # None: deleted


def convert(then: str, now: str, value: Any) -> Any:
    """What a value of the past is now, or UNKNOWN where that is not certain."""
    if value is None or then == now:
        return value
    match then, now:
        case ("int", "float") | ("decimal", "float"):
            return float(value)
        case ("int", "text") | ("int", "decimal") | ("decimal", "text"):
            return str(value)
        case ("int", "bool"):
            return value != 0
        case ("bool", "int"):
            return int(value)
        case "text", _ if not value.lstrip("-").isdigit():
            return UNKNOWN
        case "text", "int":
            return int(value)
        case "text", "float":
            return float(value)
        case "text", "decimal":
            return value
        case "float", "decimal":
            return str(Decimal(repr(value)))
    return UNKNOWN


def sort_value(kind: str, value: Any) -> Any:
    return Decimal(value) if kind == "decimal" else value


@dataclass
class Chain:
    """One application whose model changes, and the oracle of its records."""

    url: str
    home: Path
    random: random.Random
    diff_only: bool
    fields: list[Field] = field(default_factory=list)
    records: dict[str, list[Version]] = field(default_factory=dict)
    layouts: list[tuple[datetime, list[Field]]] = field(default_factory=list)
    comes_back: Field | None = None
    identities: Iterator[int] = field(default_factory=lambda: iter(range(10_000)))

    def server(self, fields: list[Field]) -> Server:
        annotations: dict[str, Any] = {}
        body: dict[str, Any] = {"__module__": __name__, "__annotations__": annotations}
        for one in fields:
            annotations[one.name] = TYPES[one.kind] | None if one.default is None else TYPES[one.kind]
            options: dict[str, Any] = {"renamed_from": one.renamed_from} if one.renamed_from else {}
            body[one.name] = column(default=one.default, filterable=True, sortable=True, **options)
        keywords = {"versioned_diff_only": True} if self.diff_only else {"versioned": True}
        keywords |= {"table": "chain_items", "history_restore": True}  # type: ignore[dict-item]
        model = new_class("Item", (Model,), keywords, lambda namespace: namespace.update(body))
        server = Server(self.url, path_prefix="", migrations_dir=str(self.home), background=False)
        server.register(model)
        return server

    async def migrate(self, fields: list[Field]) -> None:
        """Write the files that lead to these fields, and apply them; nothing changes if they are refused."""
        async with self.server(fields).migration_targets("app:server") as targets:
            for target in targets:
                options = MakeOptions(drop=True, allow_rewrite=True)
                made = await Maker(target, options, datetime.now(UTC)).make()
                try:
                    await Migrator(target, allow_rewrite=True).up()
                except ManiflexError as error:
                    if "number" not in str(error) and "invalid input" not in str(error):
                        raise
                    for path in made.paths:
                        path.unlink()
                    return
        self.fields = [replace(one, renamed_from=None) for one in fields]
        self.layouts.append((datetime.now(UTC), self.fields))

    def next_fields(self) -> list[Field]:
        """The fields after one change."""
        pick, fields = self.random, list(self.fields)
        free = [name for name in NAMES if name not in {one.name for one in fields}]
        kind = pick.choice(["rename", "retype", "add", "drop", "drop and add"])
        if kind == "rename" and fields and free:
            n = pick.randrange(len(fields))
            old = fields[n]
            fields[n] = replace(old, name=pick.choice(free), renamed_from=old.name)
        elif kind == "retype" and fields:
            n = pick.randrange(len(fields))
            new_kind = pick.choice(RETYPES[fields[n].kind])
            fields[n] = replace(fields[n], kind=new_kind, default=None)
        elif kind == "drop" and len(fields) > 1:
            fields.pop(pick.randrange(len(fields)))
        elif kind == "drop and add" and len(fields) > 1:
            old = fields.pop(pick.randrange(len(fields)))
            self.comes_back = Field(next(self.identities), old.name, pick.choice(list(TYPES)))
        elif free:
            new_kind = pick.choice(list(TYPES))
            default = None if pick.random() < 0.5 else self.value(new_kind, never_null=True)
            fields.append(Field(next(self.identities), pick.choice(free), new_kind, default))
        return fields

    def value(self, kind: str, *, never_null: bool = False) -> Any:
        pick = self.random
        if not never_null and pick.random() < 0.2:
            return None
        values: dict[str, list[Any]] = {
            "int": [-3, 0, 1, 2, 7, 10],
            "text": ["-3", "1", "2", "10", "x", "two"],
            "decimal": ["-3", "1.50", "2", "10.0"],
            "float": [-3.0, 0.5, 1.5, 2.0],
            "bool": [True, False],
        }
        return pick.choice(values[kind])

    def alive(self, moment: datetime) -> dict[str, Version]:
        states = {}
        for record_id, versions in self.records.items():
            then = [version for version in versions if version.at <= moment]
            if then and then[-1].values is not None:
                states[record_id] = then[-1]
        return states

    def fields_at(self, moment: datetime) -> list[Field]:
        return [fields for at, fields in self.layouts if at <= moment][-1]

    def told(self, state: Version, one: Field) -> tuple[bool, Any]:
        """Whether the version of a record must tell a field, and the value it had then as it is now."""
        if state.values is None or one.identity not in state.values:
            return False, UNKNOWN
        then, value = state.values[one.identity]
        now = convert(then, one.kind, value)
        return now is not UNKNOWN, now


async def write(chain: Chain, http: httpx.AsyncClient) -> None:
    """Some creates, updates, deletes and restores, all of them known to the oracle."""
    pick = chain.random
    for _ in range(pick.randint(2, 5)):
        live = [i for i, versions in chain.records.items() if versions[-1].values is not None]
        kind = pick.choice(["create", "create", "update", "update", "delete", "restore"])
        if kind == "create" or not live:
            body = {
                f.name: v
                for f in chain.fields
                if (v := chain.value(f.kind, never_null=f.default is not None)) is not None
            }
            answer = await http.post("/chain_items", json=body)
        elif kind == "update":
            record_id = pick.choice(live)
            some = pick.sample(chain.fields, pick.randint(1, len(chain.fields)))
            body = {f.name: chain.value(f.kind, never_null=f.default is not None) for f in some}
            answer = await http.patch(f"/chain_items/{record_id}", json=body)
        elif kind == "restore":
            record_id = pick.choice(live)
            version = pick.choice([v for v in chain.records[record_id] if v.values is not None])
            before = (await http.get(f"/chain_items/{record_id}")).json()["data"]
            answer = await http.post(f"/chain_items/{record_id}/history/{version.number}/restore")
            assert answer.status_code in (200, 422), answer.text
            if answer.status_code == 200:
                after = answer.json()["data"]
                for one in chain.fields:
                    is_told, value = chain.told(version, one)
                    allowed = [value] if is_told else [before[one.name]]
                    assert after[one.name] in allowed, (one, version, before, after)
        else:
            record_id = pick.choice(live)
            answer = await http.delete(f"/chain_items/{record_id}")
            assert answer.status_code == 204, answer.text
            number = chain.records[record_id][-1].number + 1
            chain.records[record_id].append(Version(datetime.now(UTC), number, None))
            continue
        if answer.status_code == 422:  # a value of then that the field may not have now, such as null
            continue
        assert answer.status_code in (200, 201), answer.text
        data = answer.json()["data"]
        values = {f.identity: (f.kind, data[f.name]) for f in chain.fields}
        versions = chain.records.setdefault(data["id"], [])
        history = (await http.get(f"/chain_items/{data['id']}/history?limit=1")).json()["data"]
        number = history[0]["version"]
        if not versions or number > versions[-1].number:
            versions.append(Version(datetime.fromisoformat(data["updated_at"]), number, values))


async def read(chain: Chain, http: httpx.AsyncClient) -> dict[str, int]:
    """Compare everything that can be asked of the past with the oracle; counts what was answered."""
    pick, counts = chain.random, {"lists": 0, "refused": 0}
    moments = [at for at, _ in chain.layouts[-4:]]
    moments += [v.at for versions in chain.records.values() for v in versions[-3:]]
    for moment in pick.sample(moments, min(len(moments), 4)):
        text = moment.isoformat().replace("+00:00", "Z")
        states = chain.alive(moment)
        await read_records(chain, http, text, states)
        if not chain.diff_only:
            await read_lists(chain, http, text, moment, states, counts)
    await read_versions(chain, http)
    return counts


async def read_records(chain: Chain, http: httpx.AsyncClient, text: str, states: dict[str, Version]) -> None:
    for record_id in chain.random.sample(sorted(chain.records), min(2, len(chain.records))):
        answer = await http.get(f"/chain_items/{record_id}?as_of={text}")
        assert answer.status_code == (200 if record_id in states else 404), answer.text
        if record_id in states:
            check_record(chain, answer.json()["data"], states[record_id])


def check_record(chain: Chain, data: dict[str, Any], state: Version) -> None:
    for one in chain.fields:
        is_told, value = chain.told(state, one)
        if is_told:
            assert data[one.name] == value, (one, state, data)
        elif one.name in data and state.values is not None:
            # Only a field that came later can have a value here: the one that all records got.
            assert one.identity not in state.values, (one, state, data)
            assert data[one.name] in (None, first_value(chain, one)), (one, state, data)


def first_value(chain: Chain, one: Field) -> Any:
    """What the records that were there got when a field came, as it is now."""
    first = next(f for _, fields in chain.layouts for f in fields if f.identity == one.identity)
    return convert(first.kind, one.kind, first.default)


async def read_lists(
    chain: Chain,
    http: httpx.AsyncClient,
    text: str,
    moment: datetime,
    states: dict[str, Version],
    counts: dict[str, int],
) -> None:
    everything = (await http.get(f"/chain_items?as_of={text}&limit=100")).json()["data"]
    assert {one["id"] for one in everything} == set(states)
    for one in everything:
        check_record(chain, one, states[one["id"]])
    was_there = {f.identity for f in chain.fields_at(moment)}
    for one in chain.fields:
        value = chain.value(one.kind, never_null=True)
        op = chain.random.choice(["eq", "gt", "is_null"])
        if op == "gt" and one.kind in ("bool", "text"):
            op = "eq"
        wanted: Callable[[Any, Any], bool] = {"gt": gt}.get(op, eq)
        shown = str(value).lower() if one.kind == "bool" else value
        condition = f"{one.name}:is_null" if op == "is_null" else f"{one.name}:{op}:{shown}"
        params = {"as_of": text, "filter": condition, "sort": one.name, "limit": "100"}
        answer = await http.get("/chain_items", params=params)
        values: dict[str, Any] = {}
        must_refuse, may_refuse = False, False
        for record_id, state in states.items():
            is_told, told = chain.told(state, one)
            then = state.values or {}
            if is_told:
                values[record_id] = told
                kinds = (then[one.identity][0], one.kind)
                may_refuse |= told is not None and kinds[0] != kinds[1] and kinds not in TOTAL
            elif one.identity in then or one.identity not in was_there:
                must_refuse = True
            else:  # it came between the version and the moment
                may_refuse = True
                values[record_id] = first_value(chain, one)
        if answer.status_code == 400:
            assert answer.json()["error"]["code"] == "HISTORY_CHANGED", answer.text
            assert must_refuse or may_refuse, (one, condition, states)
            counts["refused"] += 1
            continue
        assert answer.status_code == 200, answer.text
        assert not must_refuse, (one, condition, states, answer.text)
        if op == "is_null":
            expected = {i for i, v in values.items() if v is None}
        else:
            limit = sort_value(one.kind, value)
            expected = {
                i for i, v in values.items() if v is not None and wanted(sort_value(one.kind, v), limit)
            }
        rows = answer.json()["data"]
        assert {row["id"] for row in rows} == expected, (one, condition, values, answer.text)
        if op != "is_null":
            order = [sort_value(one.kind, values[row["id"]]) for row in rows]
            assert order == sorted(order), (one, order)
        counts["lists"] += 1


async def read_versions(chain: Chain, http: httpx.AsyncClient) -> None:
    """Snapshots and diffs have fields of now under their names of now, and no other value there."""
    record_id = chain.random.choice(sorted(chain.records))
    versions = {v.number: v for v in chain.records[record_id]}
    answer = await http.get(f"/chain_items/{record_id}/history?limit=100")
    if answer.status_code == 404:  # it is deleted; the flat route tells of it
        answer = await http.get(f"/item_histories?filter=record_id:eq:{record_id}&limit=100")
    for row in answer.json()["data"]:
        version = versions[row["version"]]
        if version.values is None or chain.diff_only:
            continue
        for one in chain.fields:
            is_told, value = chain.told(version, one)
            assert (one.name in row["snapshot"]) == is_told, (one, version, row)
            if is_told:
                assert row["snapshot"][one.name] == value, (one, version, row)
            if is_told and one.name in row["diff"]:
                assert row["diff"][one.name]["new"] == value, (one, version, row)


async def run_chain(url: str, home: Path, seed: int, *, diff_only: bool) -> dict[str, int]:
    """One chain: migrate, write and read in turns."""
    pick = random.Random(seed)
    chain = Chain(url, home, pick, diff_only)
    fields = [Field(next(chain.identities), name, pick.choice(list(TYPES))) for name in NAMES[:3]]
    counts = {"lists": 0, "refused": 0}
    await chain.migrate(fields)
    for _ in range(pick.randint(3, 5)):
        async with client(chain.server(chain.fields), database=None) as http:
            await write(chain, http)
            for name, count in (await read(chain, http)).items():
                counts[name] += count
        await chain.migrate(chain.next_fields())
        if chain.comes_back is not None:  # a field of the old name with another meaning
            await chain.migrate([*chain.fields, chain.comes_back])
            chain.comes_back = None
    return counts


async def empty(url: str) -> None:
    """Leave nothing of an earlier chain in a database of PostgreSQL."""

    async def work(adapter: Adapter) -> None:
        await adapter.execute(Sql("DROP SCHEMA public CASCADE"))
        await adapter.execute(Sql("CREATE SCHEMA public"))

    await on_adapter(url, work)


@pytest.mark.parametrize(("diff_only", "chains"), [(False, 150), (True, 50)], ids=["snapshots", "diffs"])
async def test_no_chain_of_migrations_makes_a_wrong_list(
    database_url: str, tmp_path: Path, long_mode: bool, diff_only: bool, chains: int
) -> None:
    counts = {"lists": 0, "refused": 0}
    for seed in range(chains if long_mode else 1):
        url = database_url
        if url.startswith("sqlite"):
            url = f"sqlite:///{tmp_path}/{seed}.db"
        else:
            await empty(url)
        try:
            found = await run_chain(url, tmp_path / str(seed), seed, diff_only=diff_only)
        except AssertionError as error:
            raise AssertionError(f"chain {seed}: {error}") from error
        counts = {name: count + found[name] for name, count in counts.items()}
    if long_mode and not diff_only:  # most lists were answered
        assert counts["lists"] > counts["refused"] > 0, counts
