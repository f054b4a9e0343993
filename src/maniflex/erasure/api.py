"""`server.erasure`: erases what is kept of a person, says what it did, and does it again after a restore.

>>> report = await server.erasure.erase("customer-7", reason="asked for it")
>>> report.counts
{'customers': 1, 'orders': 12, 'customer_histories': 3}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

from maniflex._caller import Caller, Source, act_on, caller, speak_as
from maniflex._ids import new_id
from maniflex._service import Service
from maniflex.background.environment import DeclaredPart, Environment
from maniflex.background.loop import Loop
from maniflex.background.outbox.api import Outbox
from maniflex.background.runs.run import Run
from maniflex.background.subjects import WorkSubject
from maniflex.config import Config
from maniflex.db.current import Primary, current_tx, transaction
from maniflex.db.port import Tx
from maniflex.db.records import Records
from maniflex.db.store import Store
from maniflex.erasure import disk
from maniflex.erasure.erasing import Erasing, ErasureProgress
from maniflex.erasure.exporting import Exporting
from maniflex.erasure.model import Erasure, ErasureState
from maniflex.erasure.ownership import WholePast
from maniflex.erasure.plan import SubjectModel, Treatment, plan_of
from maniflex.erasure.records import RecordEraser
from maniflex.erasure.statements import bind
from maniflex.erasure.work import ERASURE_RUN as ERASURE_RUN
from maniflex.erasure.work import WorkEraser, forget_gone_work
from maniflex.errors import DatabaseError, ValidationFailed
from maniflex.files.api import Files
from maniflex.files.store import FileStore
from maniflex.model.base import Model
from maniflex.model.registry import Registry
from maniflex.sql.statement import Sql, by_dialect

KIND = "maniflex.erased"  # of the message that tells consumers
RevokeUser = Callable[[str, datetime], Awaitable[None]]
NoteExport = Callable[[str, str | None, str | None], Awaitable[None]]
_LEFT = (
    "brokers, queues and sinks of audit trails outside the database",
    "caches and kept answers in Redis and in the memory of other processes",
    "versions of objects in buckets, detached partitions and logs",
    "files of transfers that wait or run, saved views, and reasons that people typed",
)


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """What an erasure came to; numbers are rows by table."""

    subject: str
    id: str | None = None  # of its row; None for one that only counted
    counts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    held: tuple[tuple[str, str], ...] = ()  # model and id of records that `retention_hold` keeps for now
    restricted: tuple[tuple[str, str], ...] = ()  # anonymised and not deleted, because others need them
    kept: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # model → `keep_reason`
    left: tuple[str, ...] = ()  # what it did not reach, a sentence each
    finished_at: datetime | None = None

    def as_json(self) -> dict[str, Any]:
        """The report in plain types."""
        return {
            **{name: getattr(self, name) for name in ("subject", "id")},
            "counts": dict(self.counts),
            "held": [list(one) for one in self.held],
            "restricted": [list(one) for one in self.restricted],
            "kept": dict(self.kept),
            "left": list(self.left),
            "finished_at": None if self.finished_at is None else self.finished_at.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class ErasedSubject:
    """A finished erasure as `log` gives it and `replay` takes it."""

    id: str
    subject: str
    user_id: str | None
    finished_at: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Erasures(DeclaredPart):
    """Erasing for one server, whose models say with `subject=` whose data their records are."""

    too_early = "the server has not started; an erasure needs its models and its database"
    not_used = "no model says with subject= whose data its records are, so there is nothing to erase"
    _plan: Sequence[SubjectModel]  # from the moment the server is sealed

    def __init__(self, outbox: Outbox, files: Files) -> None:
        super().__init__()
        self._outbox = outbox
        self._files = files
        self.revokers: Callable[[], Sequence[RevokeUser]] = tuple
        self.note_export: NoteExport = _note_nothing
        self.forget_answers: Callable[[], object] = tuple  # of this process

    def declare(self, registry: Registry, config: Config) -> None:
        """The server is about to be sealed: whether any model is about persons."""
        self._enabled = any(options.subject is not None for _, options in registry.options())
        self._enabled = self._enabled or bool(config.subject_fields)

    def models(self) -> Sequence[type[Model]]:
        return (Erasure, WorkSubject) if self.is_used else ()

    def attach(self, environment: Environment) -> None:
        super().attach(environment)
        self._plan = plan_of(environment.stores)

    def services(self) -> Sequence[Service]:
        """What erases records whose hold has ended, and forgets whom work was about that is gone."""
        if self._environment is None or not self.is_used:
            return ()
        return (_ErasureLoop(self, self._environment),)

    @property
    def plan(self) -> Sequence[SubjectModel]:
        """The models that are about persons, in the order in which they are erased."""
        self.require_sealed()
        return self._plan

    # -- erasing

    async def erase(
        self,
        subject: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        user_id: str | None = None,
        dry_run: bool = False,
        keep_running: bool = False,
        vacuum: bool = True,
        rewrite: bool = False,
    ) -> ErasureReport:
        """Erase what is kept of a person; an erasure that was cut off goes on.

        `subject` is the value that `subject=` of the models leads to; the person signs in as `user_id`, which
        is the subject unless told. A dry run counts and changes nothing. With `keep_running` runs, messages
        and schedules that wait are left to come to their end. Tables are written anew up to 100 MB, with
        `rewrite` also larger ones; `vacuum=False` writes none.
        """
        self._check(subject, user_id)
        if dry_run:
            erasing = self._erasing(None, subject, user_id, keeps_running=keep_running)
            return self._report(None, subject, await erasing.count())
        actor = by or caller().actor_id
        row = await self._begin(
            Erasure(id=new_id(), subject=subject, user_id=user_id, actor_id=actor, reason=reason)
        )
        return await self._carry_out(row, keep_running=keep_running, vacuum=vacuum, rewrite=rewrite)

    def _check(self, subject: str, user_id: str | None) -> None:
        """Refuse ids of nobody, and a transaction around the erasure."""
        self.require_sealed()
        values: Mapping[str, Any] = {"subject": subject, "user_id": subject if user_id is None else user_id}
        for name, value in values.items():
            if not isinstance(value, str) or not value:
                raise ValidationFailed(details=[{"field": name, "message": "is the id of a person, a text"}])
        if any(current_tx(one.store.adapter) is not None for one in self._plan):
            raise DatabaseError("an erasure commits batch by batch; it cannot be part of a transaction")

    def _erasing(
        self, erasure_id: str | None, subject: str, user_id: str | None, *, keeps_running: bool = False
    ) -> Erasing:
        environment, user = self.require_sealed(), user_id or subject
        return Erasing(
            erasure_id, subject, user, environment, self._plan, self._file_store, keeps_running=keeps_running
        )

    async def _carry_out(
        self, row: Erasure, *, keep_running: bool, vacuum: bool, rewrite: bool
    ) -> ErasureReport:
        """Erase what the row says, from where it was cut off to its end."""
        environment = self.require_sealed()
        erasing = self._erasing(row.id, row.subject, row.user_id, keeps_running=keep_running)
        with speak_as(Caller(actor_id=row.actor_id, source=Source.ERASURE, reason=row.reason)):
            await self._sign_out(row.user_id or row.subject, environment)
            progress = await erasing.erase()
        with act_on(environment.adapter):
            self.forget_answers()
        await self._remove_objects()
        await self._finish(erasing, row)
        row_at_end = await self._read(row.id)
        progress.counts.clear()
        progress.counts.update(row_at_end.counts)
        sentences = await erasing.rewrite(erasing.touched_tables, any_size=rewrite) if vacuum else []
        return self._report(row_at_end, row.subject, progress, sentences)

    async def run_erasure(self, run: Run) -> dict[str, Any]:
        """The handler of runs of the type `maniflex.erasure`."""
        options = {name: run.payload.get(name) for name in ("reason", "user_id") if run.payload.get(name)}
        return (await self.erase(run.payload["subject"], **options)).as_json()

    async def _begin(self, wanted: Erasure) -> Erasure:
        """The row of an erasure of the person that is under way or was cut off, or this new one."""
        environment = self.require_sealed()
        async with transaction(environment.adapter) as tx:
            if by_dialect(tx.dialect, sqlite=False, postgres=True):  # SQLite lets one write at a time
                await tx.fetch(
                    Sql("SELECT pg_advisory_xact_lock(hashtext($1))", (f"erasure {wanted.subject}",))
                )
            records = Records[Erasure](environment.stores[Erasure], tx)
            rows = await records.list(
                [("subject", "eq", wanted.subject), ("state", "eq", ErasureState.RUNNING)]
            )
            for row in rows:
                if wanted.user_id in (None, row.user_id):
                    return row
            values = {
                name: getattr(wanted, name) for name in ("id", "subject", "user_id", "actor_id", "reason")
            }
            return await records.create(**values)

    async def _read(self, erasure_id: str) -> Erasure:
        environment = self.require_sealed()
        async with transaction(environment.adapter) as tx:
            return await Records[Erasure](environment.stores[Erasure], tx).read(erasure_id)

    async def _finish(self, erasing: Erasing, row: Erasure) -> None:
        environment = self.require_sealed()
        async with transaction(environment.adapter) as tx:
            if await erasing.finish(tx) and self._outbox.is_used:
                payload = {"subject": row.subject, "user_id": row.user_id, "erasure": row.id}
                await self._outbox.enqueue(KIND, payload, key=row.subject, tx=tx)

    async def _sign_out(self, user_id: str, environment: Environment) -> None:
        """Let no access token of the person be good any more, where a revoker can do that."""
        with act_on(environment.adapter):
            for revoke in self.revokers():
                await revoke(user_id, environment.clock.now())

    async def _remove_objects(self) -> None:
        if self._files.has_storage:
            await self._files.sweep()

    @property
    def _file_store(self) -> FileStore | None:
        return self._files.desk.rows if self._files.has_storage else None

    def _report(
        self,
        row: Erasure | None,
        subject: str,
        progress: ErasureProgress,
        sentences: Sequence[str] = (),
    ) -> ErasureReport:
        reasons = {one.meta.name: one.meta.options.keep_reason or "" for one in self._plan}
        return ErasureReport(
            subject,
            None if row is None else row.id,
            MappingProxyType(dict(sorted(progress.counts.items()))),
            tuple(sorted(set(progress.held))),
            tuple(sorted(set(progress.restricted))),
            MappingProxyType({model: reasons[model] for model in sorted(progress.kept)}),
            (*sentences, *_LEFT),
            None if row is None else row.finished_at,
        )

    # -- what is kept of a person

    async def export(
        self,
        subject: str,
        *,
        user_id: str | None = None,
        history: bool = False,
        reason: str | None = None,
        by: str | None = None,
    ) -> AsyncIterator[tuple[str, bytes]]:
        """What is kept of a person, as names and bytes of parts of an archive; `manifest.json` is the last.

        Audit trails get one record of it, with the reason, before the first part.
        """
        environment = self.require_sealed()
        await self.note_export(subject, by or caller().actor_id, reason)
        exporting = Exporting(subject, user_id or subject, environment, self._plan, self._files)
        async for part in exporting.parts(history=history, now=environment.clock.now):
            yield part

    # -- rules that erase

    async def erase_records(self, store: Store, ids: Sequence[str], tx: Tx) -> None:
        """Erase records whose `Retention(action="erase")` has come, with what repeats them.

        What their models keep for a reason is kept no longer. Runs and messages about them are blanked.
        """
        environment = self.require_sealed()
        one = next(one for one in self._plan if one.store is store)
        treatment = Treatment.ANONYMISE if one.treatment is Treatment.KEEP else one.treatment
        records = RecordEraser(WholePast(), self._file_store, environment.clock)
        work = WorkEraser("", "", environment)
        with speak_as(Caller(source=Source.ERASURE)):
            await disk.overwrite_deleted(tx)
            await records.erase_batch(one, ids, tx, treatment)
            if store.adapter is environment.adapter:
                await work.erase_about(one, ids, tx)
            else:
                async with transaction(environment.adapter) as own_tx:
                    await work.erase_about(one, ids, own_tx)

    # -- holds that end

    async def tidy(self, until: Callable[[], bool] = lambda: False) -> Mapping[str, int]:
        """Erase what earlier erasures left behind for a hold that has ended; what went, by table.

        Links to runs and messages that are pruned by now go, too, and are not counted.
        """
        if not self.is_used:
            return {}
        await forget_gone_work(self.require_sealed())
        return await self._finish_held(until)

    async def _finish_held(self, until: Callable[[], bool]) -> Mapping[str, int]:
        counts = Counter[str]()
        async for row in self._with_held():
            erasing = self._erasing(row.id, row.subject, row.user_id)
            await erasing.overwrite_deleted()
            still_held: list[tuple[str, str]] = []
            for model, ids in _by_model(row.held).items():
                if until():
                    return counts
                with speak_as(Caller(actor_id=row.actor_id, source=Source.ERASURE, reason=row.reason)):
                    outcome = await erasing.erase_held(model, ids)
                still_held += outcome.held
                counts.update(outcome.counts)
            if len(still_held) < len(row.held):
                erasing.progress.held = still_held
                await erasing.note_held()
                await self._remove_objects()
                await erasing.rewrite(erasing.touched_tables)
        return counts

    async def _with_held(self) -> AsyncIterator[Erasure]:
        """Finished erasures that left records behind, one after the other."""
        environment, last_id = self.require_sealed(), ""
        text = (
            "SELECT id FROM erasure WHERE id > :last AND state = :state AND CAST(held AS text) <> '[]'"
            " ORDER BY id LIMIT 1"
        )
        run = Primary(environment.adapter)
        while True:
            found = await run.fetch_one(
                bind(text, run.dialect, last=last_id, state=str(ErasureState.FINISHED))
            )
            if found is None:
                return
            last_id = found[0]
            yield await self._read(last_id)

    # -- after a restore

    async def log(self) -> list[ErasedSubject]:
        """Every finished erasure by ids alone, the oldest first: what `replay` needs after a restore."""
        environment = self.require_sealed()
        async with transaction(environment.adapter) as tx:
            rows = await Records[Erasure](environment.stores[Erasure], tx).list(
                [("state", "eq", ErasureState.FINISHED)], sorts="finished_at", limit=1_000_000
            )
        return [
            ErasedSubject(row.id, row.subject, row.user_id, "" if at is None else at.isoformat())
            for row in rows
            for at in (row.finished_at,)
        ]

    async def replay(self, log: Sequence[ErasedSubject], *, vacuum: bool = True) -> list[ErasureReport]:
        """Erase again who was erased by erasures that the database does not know: it is older than they."""
        known_ids = {entry.id for entry in await self.log()}
        reports = []
        for entry in log:
            if entry.id not in known_ids:
                reason = f"replay of erasure {entry.id}"
                reports.append(await self._replay(entry, reason, vacuum=vacuum))
        return reports

    async def _replay(self, entry: ErasedSubject, reason: str, *, vacuum: bool) -> ErasureReport:
        """Erase under the id of the log, so that a second replay knows it."""
        self._check(entry.subject, entry.user_id)
        wanted = Erasure(
            id=entry.id,
            subject=entry.subject,
            user_id=entry.user_id,
            actor_id=caller().actor_id,
            reason=reason,
        )
        row = await self._begin(wanted)
        return await self._carry_out(row, keep_running=False, vacuum=vacuum, rewrite=False)


def _by_model(held: Sequence[Sequence[str]]) -> Mapping[str, list[str]]:
    """The ids of records by the names of their models."""
    ids_by_model: dict[str, list[str]] = {}
    for model, record_id in held:
        ids_by_model.setdefault(model, []).append(record_id)
    return ids_by_model


async def _note_nothing(subject: str, actor: str | None, reason: str | None) -> None:
    """The note of a server without audit trails."""


class _ErasureLoop(Loop):
    name = "maniflex-erasure"

    def __init__(self, erasures: Erasures, environment: Environment) -> None:
        super().__init__(environment.clock, environment.config.retention_interval, environment.logger)
        self._erasures = erasures

    async def tick(self) -> bool:
        await self._erasures.tidy(lambda: self.stopping)
        return False
