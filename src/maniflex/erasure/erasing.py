"""One erasure at work: what it does, in its order, and how far its row says that it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from maniflex._json import encode_plain
from maniflex.background.environment import Environment
from maniflex.background.parameters import parameters_of
from maniflex.db.current import Primary, transaction
from maniflex.db.port import Adapter, Tx
from maniflex.erasure import disk
from maniflex.erasure.model import ErasureState
from maniflex.erasure.plan import SubjectModel, Treatment
from maniflex.erasure.records import BATCH, ErasedBatch, RecordEraser
from maniflex.erasure.statements import bind
from maniflex.erasure.work import BATCH as ROWS
from maniflex.erasure.work import RUNS, PersonTrace, WorkEraser, WorkTable
from maniflex.errors import DeleteRestricted, SerializationFailure
from maniflex.files.store import FileStore
from maniflex.sql import cascade as cascade_sql
from maniflex.sql.statement import by_dialect

_TRIES = 5  # of a batch that others got in the way of
_read_json = msgspec.json.Decoder().decode
_OF_RUNS = ("workflow_event", "workflow_step", "workflow_signal")


@dataclass(slots=True)
class ErasureProgress:
    """What an erasure has come to so far."""

    counts: Counter[str] = field(default_factory=Counter)
    held: list[tuple[str, str]] = field(default_factory=list)
    restricted: list[tuple[str, str]] = field(default_factory=list)
    kept: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: ErasedBatch) -> None:
        self.counts.update(outcome.counts)
        self.held += outcome.held
        self.kept.update(outcome.kept)
        self.restricted += outcome.restricted


class Erasing:
    """The erasure of one person, whose row is `erasure_id`; without one it only counts."""

    def __init__(
        self,
        erasure_id: str | None,
        subject: str,
        user_id: str,
        environment: Environment,
        plan: Sequence[SubjectModel],
        files: FileStore | None,
        *,
        keeps_running: bool = False,
    ) -> None:
        self._id = erasure_id
        self._environment = environment
        self._adapter = environment.adapter
        self._plan = plan
        self._files = files
        self._user_id = user_id
        self._records = RecordEraser(subject, plan, files, environment.clock)
        self._work = WorkEraser(subject, user_id, environment, keeps_running=keeps_running)
        self.progress = ErasureProgress()

    # -- all of it

    async def count(self) -> ErasureProgress:
        """What `erase` would do; nothing is changed."""
        record_ids = await self._ids_by_model()
        for kind in await self._work.kinds():
            self.progress.counts[kind.table] += len(await self._work.ids_of(kind, record_ids))
        for one in self._plan:
            ids = await self._records.ids_of(one)
            for some in _parts(ids, BATCH):
                self.progress.add(await self._records.count_batch(one, some))
            if one.treatment is not Treatment.KEEP:
                rows = await self._records.leftovers(one, Primary(one.store.adapter), ids)
                self.progress.counts.update({table: len(rows_found) for table, rows_found in rows.items()})
        for adapter in self._databases():
            for trace in await self._work.traces(adapter):
                self.progress.counts[trace.table] += await self._work.count_trace(trace, Primary(adapter))
        self.progress.counts["stored_file"] += len(await self._loose_files())
        self.progress.counts = +self.progress.counts
        return self.progress

    async def erase(self) -> ErasureProgress:
        """Erase everything that is not erased yet."""
        for adapter in self._databases():
            await disk.overwrite_deleted(adapter)
        await self._erase_traces()
        await self._erase_work()
        for one in self._plan:
            await self._erase_records(one)
        await self._erase_loose_files()
        await self._note_exceptions()
        return self.progress

    async def rewrite(self, tables: Sequence[str], *, any_size: bool = False) -> list[str]:
        """Write anew what was erased from; what was left as it is, a sentence each."""
        sentences: list[str] = []
        stores = self._environment.stores.values()
        for adapter in self._databases():
            models = [store.sql for store in stores if store.adapter is adapter]
            own = {model.table.name for model in models}
            here = [table for table in tables if table in own or adapter is self._adapter]
            sentences += await disk.rewrite(adapter, models, here, any_size=any_size)
        return sentences

    @property
    def touched_tables(self) -> list[str]:
        """The tables that rows were erased from."""
        tables = set(+self.progress.counts)
        if RUNS.table in tables:
            tables |= set(_OF_RUNS)
        if "stored_file" in tables:
            tables.add("file_link")
        return sorted(tables)

    def _databases(self) -> list[Adapter]:
        adapters = [self._adapter, *(one.store.adapter for one in self._plan)]
        return list({id(adapter): adapter for adapter in adapters}.values())

    # -- its parts

    async def _erase_traces(self) -> None:
        for adapter in self._databases():
            for trace in await self._work.traces(adapter):
                while await self._erase_trace(trace, adapter) >= ROWS:
                    pass

    async def _erase_trace(self, trace: PersonTrace, adapter: Adapter) -> int:
        async def erase(tx: Tx) -> ErasedBatch:
            return ErasedBatch(Counter({trace.table: await self._work.erase_trace(trace, tx)}))

        return (await self._commit(adapter, erase)).counts[trace.table]

    async def _erase_work(self) -> None:
        record_ids = await self._ids_by_model()
        for kind in await self._work.kinds():
            ids = await self._work.ids_of(kind, record_ids)
            for some in _parts(ids, ROWS):
                await self._blank(kind, some)

    async def _blank(self, kind: WorkTable, ids: Sequence[str]) -> None:
        async def blank(tx: Tx) -> ErasedBatch:
            return ErasedBatch(Counter({kind.table: await self._work.blank(kind, ids, tx)}))

        await self._commit(self._adapter, blank)

    async def _ids_by_model(self) -> dict[str, list[str]]:
        """The records that are erased, by model; those of the past, too."""
        record_ids: dict[str, list[str]] = {}
        for one in self._plan:
            if one.treatment is Treatment.KEEP:
                continue
            ids = {*await self._records.ids_of(one), *await self._records.past_ids(one)}
            record_ids[one.meta.name] = sorted(ids - set(await self._held_ids(one, sorted(ids))))
        return record_ids

    async def _held_ids(self, one: SubjectModel, ids: Sequence[str]) -> list[str]:
        if one.meta.hold is None:
            return []
        run, rows_found = Primary(one.store.adapter), []
        for some in _parts(ids, BATCH):
            stored_rows = await run.fetch(cascade_sql.rows(one.store.sql, some, locked=False))
            rows = stored_rows if one.store.decode is None else [one.store.decode(r) for r in stored_rows]
            rows_found += [record_id for _, record_id in self._records.judge(one, rows)[0].held]
        return rows_found

    async def _erase_records(self, one: SubjectModel) -> None:
        ids = await self._records.ids_of(one)
        held_ids: list[str] = []
        for some in _parts(ids, BATCH):
            outcome = await self.erase_some(one, some)
            held_ids += [record_id for _, record_id in outcome.held]
        if one.treatment is not Treatment.KEEP:
            await self._commit(one.store.adapter, lambda tx: self._records.scrub_leftovers(one, tx, held_ids))

    async def erase_some(self, one: SubjectModel, ids: Sequence[str]) -> ErasedBatch:
        """Erase a batch of records; one by one where others keep some from going."""
        try:
            return await self._commit(one.store.adapter, lambda tx: self._records.erase_batch(one, ids, tx))
        except DeleteRestricted:
            if len(ids) == 1:
                return await self._commit(
                    one.store.adapter, lambda tx: self._records.anonymise_batch(one, ids, tx)
                )
        outcome = ErasedBatch()
        for record_id in ids:
            outcome.add(await self.erase_some(one, [record_id]))
        return outcome

    async def _loose_files(self) -> list[str]:
        """The files that the person uploaded and no record names."""
        if self._files is None:
            return []
        run = Primary(self._files.adapter)
        text = "SELECT key FROM stored_file WHERE actor_id = :user AND state IN ('pending', 'stored')"
        return [row[0] for row in await run.fetch(bind(text, run.dialect, user=self._user_id))]

    async def _erase_loose_files(self) -> None:
        keys, files = await self._loose_files(), self._files
        if not keys or files is None:
            return

        async def condemn(tx: Tx) -> ErasedBatch:
            gone_keys = await files.condemn(keys, self._environment.clock.now(), tx)
            text = "UPDATE stored_file SET filename = '' WHERE key AMONG(:keys)"
            await tx.execute(bind(text, tx.dialect, keys=sorted(gone_keys)))
            return ErasedBatch(Counter({"stored_file": len(gone_keys)}))

        await self._commit(files.adapter, condemn)

    # -- its row

    async def _commit(self, adapter: Adapter, work: Callable[[Tx], Awaitable[ErasedBatch]]) -> ErasedBatch:
        """Run a batch and note its numbers, together where the row is in the same database."""
        for sentences in reversed(range(_TRIES)):
            try:
                async with transaction(adapter) as tx:
                    outcome = await work(tx)
                    if adapter is self._adapter:
                        await self._note(outcome, tx)
                break
            except SerializationFailure:
                if not sentences:
                    raise
        if adapter is not self._adapter:
            async with transaction(self._adapter) as tx:
                await self._note(outcome, tx)
        self.progress.add(outcome)
        return outcome

    async def _note(self, outcome: ErasedBatch, tx: Tx) -> None:
        if not +outcome.counts:
            return
        lock = by_dialect(tx.dialect, sqlite="", postgres=" FOR UPDATE")
        [row] = await tx.fetch(
            bind(f"SELECT counts FROM erasure WHERE id = :id{lock}", tx.dialect, id=self._id)
        )
        counts = Counter(_read_json(row[0]))
        counts.update(outcome.counts)
        await self._set(tx, counts=encode_plain(dict(+counts)))

    async def _note_exceptions(self) -> None:
        """Write down what was held, restricted and kept by this pass."""
        async with transaction(self._adapter) as tx:
            await self._set(
                tx,
                held=encode_plain([list(one) for one in self.progress.held]),
                restricted=encode_plain([list(one) for one in self.progress.restricted]),
                kept=encode_plain(dict(self.progress.kept)),
            )

    async def note_held(self) -> None:
        """Write down what is still held."""
        async with transaction(self._adapter) as tx:
            await self._set(tx, held=encode_plain([list(one) for one in self.progress.held]))

    async def finish(self, tx: Tx) -> None:
        """Note the end in the transaction that tells consumers of it."""
        moment = parameters_of(tx.dialect).time(self._environment.clock.now())
        await self._set(tx, state=str(ErasureState.FINISHED), finished_at=moment)

    async def _set(self, tx: Tx, **values: object) -> None:
        json = by_dialect(tx.dialect, sqlite="{}", postgres="CAST({} AS json)")
        plain = ("state", "finished_at")
        changes = [f"{n} = {f':{n}' if n in plain else json.format(f':{n}')}" for n in values]
        moment = parameters_of(tx.dialect).time(self._environment.clock.now())
        text = f"UPDATE erasure SET {', '.join(changes)}, updated_at = :now WHERE id = :id"
        await tx.execute(bind(text, tx.dialect, id=self._id, now=moment, **values))


def _parts(ids: Sequence[str], size: int) -> list[Sequence[str]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]
