"""What durable work, caches, kept answers and sessions hold of a person: blanked, emptied or removed.

A run or a message is about a person by `about=` a record of theirs, by `subjects=`, and by a key at the top
of its payload that `subject_fields` names. One that is over keeps its row and loses what it says; one that
waits fails with `erased`, unless it is to be kept running.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from maniflex._names import singular, snake_case
from maniflex.background.environment import Environment
from maniflex.background.parameters import parameters_of
from maniflex.background.runs.model import FINISHED, Status
from maniflex.db.current import Primary
from maniflex.db.port import Adapter, Executor, Row, Tx
from maniflex.erasure.past import without, without_sides
from maniflex.erasure.plan import SubjectModel
from maniflex.erasure.statements import bind, in_parts, json_text, unreadable
from maniflex.sql.statement import by_dialect
from maniflex.sql.tables import find_table

BATCH = 500
ERASURE_RUN = "maniflex.erasure"
TRAIL_KIND = "maniflex.audit"  # of messages that bring records of audit trails to their sinks
_read_json = msgspec.json.Decoder().decode
_write_json = msgspec.json.Encoder().encode
_PLACE = "strpos(CAST({0} AS text), CAST(:word AS text))"
_SETTLING = timedelta(hours=1)  # a transaction that stores work may still be open
_GENERATED = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # an id that was made here
_ERASED = '{"code":"erased","message":"the person it is about was erased"}'


@dataclass(frozen=True, slots=True)
class PersonTrace:
    """Rows of a table of the framework that repeat what somebody did or was shown."""

    table: str
    where: str
    assignments: str = ""  # empty: the rows are removed


_DONE = "SELECT id FROM admin_transfer WHERE phase = 'done' AND model AMONG(:models)"
# Answers that are kept for repetitions, cached ones, and files of transfers that are done, cannot be told
# apart by person: all of them go.
TRACES = (
    PersonTrace("refresh_token", "actor = :user"),
    PersonTrace("api_key", "actor = :user"),
    PersonTrace("admin_session", "user_id = :user"),
    PersonTrace(
        "admin_user",
        "id = :user AND email <> id || '@erased.invalid'",
        "active = false, password = '', email = id || '@erased.invalid'",
    ),
    PersonTrace(
        "admin_event",
        "actor_id = :user AND (address <> '' OR actor_name <> '')",
        "address = '', network = '', actor_name = ''",
    ),
    PersonTrace("admin_transfer_piece", f"transfer_id IN ({_DONE})"),
    PersonTrace("admin_transfer_refusal", f"transfer_id IN ({_DONE})"),
    PersonTrace("admin_transfer", f"id IN ({_DONE})"),
    PersonTrace(
        "read_audit_log",
        "actor = :user AND (client_ip IS NOT NULL OR user_agent IS NOT NULL)",
        "client_ip = NULL, user_agent = NULL",
    ),
    PersonTrace(
        "action_audit_log",
        "actor = :user AND (body IS NOT NULL OR CAST(params AS text) <> '{}')",
        "body = NULL, params = '{}'",
    ),
    PersonTrace(
        "job_status",
        "actor_id = :user AND (output IS NOT NULL OR error IS NOT NULL)",
        "output = NULL, error = NULL",
    ),
    PersonTrace("idempotency_key", "settled AND answer IS NOT NULL", "answer = NULL"),
    PersonTrace("cache_entry", "value IS NOT NULL"),
)


@dataclass(frozen=True, slots=True)
class WorkTable:
    """A table of durable work: how a person is found in it, and what is left of a row."""

    table: str
    link: str | None  # of `work_subject`
    has_about: bool
    texts: tuple[str, ...]  # columns that say something
    finished: str  # the condition that nothing more happens to a row
    blank: str  # assignments
    payload: str = "payload"  # the column whose keys at the top may name the person
    about: str = "about"  # the column that names a record


RUNS = WorkTable(
    "workflow_run",
    "run",
    True,
    ("result", "error", "last_error"),
    f"status IN ({', '.join(repr(str(status)) for status in FINISHED)})",
    "payload = '{}', result = NULL, last_error = NULL,"
    " error = CASE WHEN error IS NOT NULL AND CAST(error AS text) = :erased THEN error END",
)
MESSAGES = WorkTable(
    "outbox_event",
    "message",
    True,
    ("payload", "raw"),
    "status <> 'pending'",
    "payload = NULL, raw = NULL, last_error = NULL",
)
SCHEDULES = WorkTable("schedules", None, False, ("payload",), "status = 'inactive'", "payload = NULL")
# What happened cannot be undone: an event stays where it is, and is handed on without its data.
EVENTS = WorkTable(
    "event_log",
    None,
    True,
    ("data", "scope", "headers"),
    "true",
    "data = NULL, scope = NULL, headers = NULL, erased = true",
    "data",
    "subject",
)


class WorkEraser:
    """Blanks what the database of durable work holds of one person."""

    def __init__(
        self, subject: str, user_id: str, environment: Environment, *, keeps_running: bool = False
    ) -> None:
        self._subject = subject
        self._user_id = user_id
        self._environment = environment
        self._adapter = environment.adapter
        self._keeps_running = keeps_running
        self._tables: dict[tuple[int, str], bool] = {}

    async def has(self, adapter: Adapter, table: str) -> bool:
        """Whether a database has a table of the framework."""
        key = id(adapter), table
        if key not in self._tables:
            row = await Primary(adapter).fetch_one(find_table(table, adapter.dialect))
            self._tables[key] = row is not None
        return self._tables[key]

    async def kinds(self) -> list[WorkTable]:
        return [
            kind for kind in (RUNS, MESSAGES, SCHEDULES, EVENTS) if await self.has(self._adapter, kind.table)
        ]

    # -- runs, messages and schedules

    async def ids_of(self, kind: WorkTable, record_ids: Mapping[str, Sequence[str]]) -> list[str]:
        """The rows that are about the person and still say something."""
        run, fields = Primary(self._adapter), self._environment.config.subject_fields
        own_ids = set(await self.ids_about(kind, record_ids))
        state = self._still_says(kind)
        if kind.link is not None and await self.has(self._adapter, "work_subject"):
            text = (
                f"SELECT id FROM {kind.table} WHERE {state} AND id IN (SELECT work_id FROM work_subject"
                f" WHERE subject = :subject AND kind = '{kind.link}')"
            )
            own_ids |= await self._ids(run, text, subject=self._subject)
        if fields:
            texts = [f"{json_text(run.dialect, kind.payload, name)} = :subject" for name in fields]
            # A payload that cannot be taken apart is the person's if it has her id as a text of its own.
            place = by_dialect(run.dialect, sqlite="instr({0}, :word)", postgres=_PLACE).format(kind.payload)
            texts.append(f"({unreadable(run.dialect, kind.payload)} AND {place} > 0)")
            text = f"SELECT id FROM {kind.table} WHERE {state} AND ({' OR '.join(texts)})"
            word = _write_json(self._subject).decode()
            own_ids |= await self._ids(run, text, subject=self._subject, word=word)
        return sorted(own_ids)

    async def ids_about(self, kind: WorkTable, record_ids: Mapping[str, Sequence[str]]) -> list[str]:
        """The rows that are about one of these records and still say something."""
        run, own_ids, state = Primary(self._adapter), set[str](), self._still_says(kind)
        subjects = await self._subjects(kind, record_ids) if kind.has_about else []
        for start in range(0, len(subjects), BATCH):
            text = f"SELECT id FROM {kind.table} WHERE {kind.about} AMONG(:keys) AND {state}"
            own_ids |= await self._ids(run, text, keys=subjects[start : start + BATCH])
        if kind is EVENTS:  # their subjects may be called otherwise
            for name, ids in record_ids.items():
                for start in range(0, len(ids), BATCH):
                    text = (
                        f"SELECT id FROM event_log WHERE model = :model AND record_id AMONG(:ids) AND {state}"
                    )
                    own_ids |= await self._ids(run, text, model=name, ids=list(ids[start : start + BATCH]))
        return sorted(own_ids)

    async def _subjects(self, kind: WorkTable, record_ids: Mapping[str, Sequence[str]]) -> list[str]:
        """What rows about these records say that they are about, also by names that their classes had.

        A noun that no class has now is tried with ids that nothing else can have.
        """
        unknown_nouns = await self._unknown_nouns(kind) if any(record_ids.values()) else []
        return [
            f"{noun}/{record_id}"
            for name, ids in record_ids.items()
            for nouns in (self._nouns_of(name),)
            for record_id in ids
            for noun in (*nouns, *(unknown_nouns if _GENERATED.fullmatch(record_id) else ()))
        ]

    def _nouns_of(self, name: str) -> list[str]:
        """What records of a model are called, and were, as far as its table tells."""
        metas = {store.meta.name: store.meta for store in self._environment.stores.values()}
        tables = (metas[name].table, metas[name].options.renamed_from) if name in metas else ()
        former = {noun for table in tables if table and (noun := singular(table))}
        former -= set(map(snake_case, metas))
        return [snake_case(name), *sorted(former)]

    async def _unknown_nouns(self, kind: WorkTable) -> list[str]:
        """The nouns of rows about records that no model of today is called by."""
        run = Primary(self._adapter)
        noun = by_dialect(
            run.dialect,
            sqlite=f"substr({kind.about}, 1, instr({kind.about}, '/') - 1)",
            postgres=f"split_part({kind.about}, '/', 1)",
        )
        nouns = await self._ids(
            run, f"SELECT DISTINCT {noun} FROM {kind.table} WHERE {kind.about} IS NOT NULL"
        )
        return sorted(
            nouns - {snake_case(store.meta.name) for store in self._environment.stores.values()} - {""}
        )

    async def _ids(self, run: Primary, text: str, **values: object) -> set[str]:
        return {row[0] for row in await run.fetch(bind(text, run.dialect, **values))}

    def _still_says(self, kind: WorkTable) -> str:
        parts = [f"{column} IS NOT NULL" for column in kind.texts if column not in ("error", "last_error")]
        if kind is RUNS:
            parts.append("CAST(payload AS text) <> '{}'")
            parts.append(
                f"last_error IS NOT NULL OR (error IS NOT NULL AND CAST(error AS text) <> '{_ERASED}')"
            )
        if not self._keeps_running:
            parts.append(f"NOT ({kind.finished})")
        state = f"({' OR '.join(parts)})"
        if kind is RUNS:  # an erasure that comes as a run is about the person, and must not end itself
            state += f" AND type <> '{ERASURE_RUN}'"
        return f"{state} AND {kind.finished}" if self._keeps_running else state

    async def blank(self, kind: WorkTable, ids: Sequence[str], tx: Tx) -> int:
        """Blank these rows; what waits fails first."""
        names, now = list(ids), self._environment.clock.now()
        moment = parameters_of(tx.dialect).time(now)
        condition = kind.finished if self._keeps_running else "true"
        if kind is RUNS:
            await self._blank_ends(names, tx)
        if not self._keeps_running:
            await self._fail(kind, names, tx)
        values = {"erased": _ERASED} if ":erased" in kind.blank else {}
        text = f"UPDATE {kind.table} SET {kind.blank}, updated_at = :now WHERE id AMONG(:ids) AND {condition}"
        count = await tx.execute(bind(text, tx.dialect, ids=names, now=moment, **values))
        if kind is RUNS:
            for statement in (
                "UPDATE workflow_event SET data = NULL WHERE data IS NOT NULL AND workflow_id AMONG(:ids)",
                "UPDATE workflow_step SET result = NULL WHERE result IS NOT NULL AND workflow_id AMONG(:ids)",
                "UPDATE workflow_signal SET payload = NULL WHERE payload IS NOT NULL"
                " AND workflow_id AMONG(:ids)",
            ):
                await tx.execute(bind(statement, tx.dialect, ids=names))
        elif kind is EVENTS:  # what functions raised over them
            statement = "UPDATE outbox_event SET last_error = NULL WHERE about AMONG(:ids)"
            await tx.execute(bind(statement, tx.dialect, ids=[f"event/{id}" for id in names]))
        return count

    async def blank_new_events(self, one: SubjectModel, ids: Sequence[str], since: datetime, tx: Tx) -> None:
        """Blank the events that the erasure of these records itself has made, which no report counts."""
        if await self.has(self._adapter, EVENTS.table):
            moment = parameters_of(tx.dialect).time(since)
            text = (
                f"UPDATE event_log SET {EVENTS.blank} WHERE model = :model AND record_id AMONG(:ids)"
                " AND time >= :since AND NOT erased"
            )
            await tx.execute(bind(text, tx.dialect, model=one.meta.name, ids=list(ids), since=moment))

    async def _blank_ends(self, run_ids: Sequence[str], tx: Tx) -> None:
        """Blank the events that told what came of these runs."""
        if not await self.has(self._adapter, EVENTS.table):
            return
        subjects = [f"{what}/{id}" for id in run_ids for what in ("run", "job")]
        text = "SELECT id FROM event_log WHERE subject AMONG(:keys) AND data IS NOT NULL"
        event_ids = [row[0] for row in await tx.fetch(bind(text, tx.dialect, keys=subjects))]
        if event_ids:
            await self.blank(EVENTS, event_ids, tx)

    async def _fail(self, kind: WorkTable, ids: Sequence[str], tx: Tx) -> None:
        """End what waits, so that no worker takes it any more, and one that has it writes nothing."""
        now, names = self._environment.clock.now(), list(ids)
        moment = parameters_of(tx.dialect).time(now)
        if kind is RUNS:
            runs = self._environment.runs
            text = f"SELECT id FROM workflow_run WHERE id AMONG(:ids) AND NOT ({kind.finished})"
            waiting = [row[0] for row in await tx.fetch(bind(text, tx.dialect, ids=names))]
            for run_id in waiting:
                await runs.store.cancel(run_id, now, running=True, tx=tx)
            error = by_dialect(tx.dialect, sqlite=":erased", postgres="CAST(:erased AS json)")
            text = (
                f"UPDATE workflow_run SET status = '{Status.FAILED}', error = {error}, waiting_for = NULL"
                " WHERE id AMONG(:ids)"
            )
            await tx.execute(bind(text, tx.dialect, ids=waiting, erased=_ERASED))
            if waiting:
                await runs.publish_ends(waiting, tx)
                await runs.tell_parents(waiting, tx)
        elif kind is MESSAGES:
            text = (
                "UPDATE outbox_event SET status = 'dead', lease = NULL, lease_until = NULL, leased_by = NULL,"
                " updated_at = :now WHERE id AMONG(:ids) AND status = 'pending'"
            )
            await tx.execute(bind(text, tx.dialect, ids=names, now=moment))
        elif kind is SCHEDULES:
            text = (
                "UPDATE schedules SET status = 'inactive', next_run_at = NULL, last_error = 'erased',"
                " updated_at = :now WHERE id AMONG(:ids)"
            )
            await tx.execute(bind(text, tx.dialect, ids=names, now=moment))

    async def erase_about(self, one: SubjectModel, ids: Sequence[str], tx: Tx) -> None:
        """Blank what is about these records, and scrub what tells sinks of audit trails of them."""
        for kind in await self.kinds():
            for work_ids in in_parts(await self.ids_about(kind, {one.meta.name: ids}), BATCH):
                await self.blank(kind, work_ids, tx)
        async for page in self.trail_messages({one: ids}):
            await self.rewrite_messages(page, tx)

    # -- messages to the sinks of audit trails

    async def trail_messages(
        self, record_ids: Mapping[SubjectModel, Sequence[str]]
    ) -> AsyncIterator[list[tuple[str, str]]]:
        """Messages that bring records of audit trails, some at a time, and the payloads they are to have.

        They are not ended, as others that wait are: a trail tells who did what, also of an erased person.
        """
        if not await self.has(self._adapter, MESSAGES.table):
            return
        run = Primary(self._adapter)
        parts = [
            json_text(run.dialect, "payload", "record", name) for name in ("model", "resource_id", "actor")
        ]
        text = f"SELECT id, payload FROM outbox_event WHERE kind = '{TRAIL_KIND}' AND payload IS NOT NULL AND"
        about = f"{text} {parts[0]} = :model AND {parts[1]} AMONG(:ids)"
        for one, ids in record_ids.items():
            for start in range(0, len(ids), BATCH):
                some = list(ids[start : start + BATCH])
                rows = await run.fetch(bind(about, run.dialect, model=one.meta.name, ids=some))
                if page := _rewritten(rows, partial(_scrub_trail, one)):
                    yield page
        rows = await run.fetch(bind(f"{text} {parts[2]} = :user", run.dialect, user=self._user_id))
        if page := _rewritten(rows, _scrub_caller):
            yield page

    async def rewrite_messages(self, messages: Sequence[tuple[str, str]], tx: Tx) -> int:
        """Give the messages these payloads."""
        json = by_dialect(tx.dialect, sqlite=":payload", postgres="CAST(:payload AS json)")
        text = f"UPDATE outbox_event SET payload = {json} WHERE id = :id"
        await tx.batch([bind(text, tx.dialect, id=id, payload=payload) for id, payload in messages])
        return len(messages)

    # -- traces

    async def traces(self, adapter: Adapter) -> list[PersonTrace]:
        return [trace for trace in TRACES if await self.has(adapter, trace.table)]

    async def count_trace(self, trace: PersonTrace, run: Executor | Primary) -> int:
        text = f"SELECT count(*) FROM {trace.table} WHERE {trace.where}"
        row = await run.fetch_one(bind(text, run.dialect, **self._values(trace)))
        return 0 if row is None else int(row[0])

    async def erase_trace(self, trace: PersonTrace, tx: Tx) -> int:
        """Erase some rows; fewer than `BATCH` when these were the last."""
        rows = f"id IN (SELECT id FROM {trace.table} WHERE {trace.where} LIMIT {BATCH})"
        verb = f"UPDATE {trace.table} SET {trace.assignments}" if trace.assignments else ""
        text = f"{verb or f'DELETE FROM {trace.table}'} WHERE {rows}"
        return await tx.execute(bind(text, tx.dialect, **self._values(trace)))

    def _values(self, trace: PersonTrace) -> dict[str, Any]:
        stores = self._environment.stores.values()
        models = [store.meta.name for store in stores if store.meta.options.subject is not None]
        values: dict[str, Any] = {"user": self._user_id, "models": models}
        return {name: value for name, value in values.items() if f":{name}" in trace.where}


def _rewritten(
    rows: Sequence[Row], scrub: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[tuple[str, str]]:
    """The messages whose record is another one when it is scrubbed, and their payloads then."""
    page = []
    for message_id, stored in rows:
        payload = _read_json(stored) if isinstance(stored, str | bytes) else stored
        record = scrub(payload["record"])
        if record != payload["record"]:
            page.append((message_id, _write_json({**payload, "record": record}).decode()))
    return page


def _scrub_trail(one: SubjectModel, record: dict[str, Any]) -> dict[str, Any]:
    erased = one.erased_json(str(record.get("resource_id")))
    columns = {
        "result": without(_json_of(record.get("result")), one.names, erased),
        "changes": without_sides(_json_of(record.get("changes")), one.names, ("from", "to"), erased),
    }
    return {**record, **{name: None if t is None else _read_json(t) for name, t in columns.items()}}


_OF_CALLERS = ("client_ip", "user_agent", "body", "params")


def _scrub_caller(record: dict[str, Any]) -> dict[str, Any]:
    """A record of a read or of an action without what it says of the person who did it."""
    nothing: dict[str, Any] = {"params": {}}
    return {name: nothing.get(name) if name in _OF_CALLERS else value for name, value in record.items()}


def _json_of(value: Any) -> str | None:
    return None if value is None else _write_json(value).decode()


async def forget_gone_work(environment: Environment) -> None:
    """Remove links to runs and messages that are not there any more; those that are being stored stay."""
    adapter = environment.adapter
    conditions = [
        f"(s.kind = '{kind.link}' AND NOT EXISTS (SELECT 1 FROM {kind.table} w WHERE w.id = s.work_id))"
        for kind in (RUNS, MESSAGES)
        if await Primary(adapter).fetch_one(find_table(kind.table, adapter.dialect)) is not None
    ]
    text = (
        "DELETE FROM work_subject WHERE id IN (SELECT s.id FROM work_subject s WHERE s.created_at < :before"
        f" AND ({' OR '.join(conditions)}) LIMIT {BATCH})"
    )
    before = parameters_of(adapter.dialect).time(environment.clock.now() - _SETTLING)
    while conditions and await adapter.execute(bind(text, adapter.dialect, before=before)) >= BATCH:
        pass
