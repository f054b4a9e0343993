"""One erasure at work: what it does, in its order, and how far its row says that it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from maniflex._json import encode_plain
from maniflex.background.environment import Environment
from maniflex.background.parameters import parameters_of
from maniflex.db.current import Primary, transaction
from maniflex.db.port import Adapter, Tx
from maniflex.erasure import disk
from maniflex.erasure.foreseeing import Foresight
from maniflex.erasure.model import ErasureState
from maniflex.erasure.ownership import Ownership
from maniflex.erasure.plan import SubjectModel, Treatment
from maniflex.erasure.records import BATCH, ErasedBatch, RecordEraser
from maniflex.erasure.statements import bind, in_parts
from maniflex.erasure.work import BATCH as ROWS
from maniflex.erasure.work import EVENTS, MESSAGES, RUNS, PersonTrace, WorkEraser, WorkTable
from maniflex.errors import DeleteRestricted, SerializationFailure
from maniflex.files.store import FileStore, Link
from maniflex.sql.statement import by_dialect

_TRIES = 5  # of a batch that others got in the way of
_PASSES = 4
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

    def forget_exceptions(self) -> None:
        """Forget what was not erased as it should be: the pass that begins sees it again."""
        self.held, self.restricted, self.kept = [], [], Counter()


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
        self._ownership = Ownership(subject)
        self._records = RecordEraser(self._ownership, files, environment.clock, plan)
        self._work = WorkEraser(subject, user_id, environment, keeps_running=keeps_running)
        self.progress = ErasureProgress()

    # -- all of it

    async def count(self) -> ErasureProgress:
        """What `erase` would do; nothing is changed."""
        await self._count_work()
        foresight, freed = Foresight(), set[Link]()
        for one in self._plan:
            for some in in_parts(await self._ownership.ids_of(one), BATCH):
                erasable_ids = sorted(set(some) - set(await self._records.held_ids(one, some)))
                outlook = await foresight.foresee(one, erasable_ids)
                outcome = await self._records.count_batch(one, some, outlook)
                self.progress.add(outcome)
                freed.update(outcome.freed)
            async for ids, is_hers in self._past_parts(one):
                self.progress.add(await self._records.count_past(one, ids, is_hers=is_hers))
        for adapter in self._databases():
            for trace in await self._work.traces(adapter):
                self.progress.counts[trace.table] += await self._work.count_trace(trace, Primary(adapter))
        self.progress.counts["stored_file"] += await self._records.count_files(freed)
        self.progress.counts["stored_file"] += len(await self._loose_files())
        self.progress.counts = +self.progress.counts
        return self.progress

    async def erase(self) -> ErasureProgress:
        """Erase everything that is not erased yet, until a pass finds nothing: others may be writing."""
        await self.overwrite_deleted()
        for _ in range(_PASSES):
            counts_before = +self.progress.counts
            await self._pass()
            if +self.progress.counts == counts_before:
                break
        await self._note_exceptions()
        return self.progress

    async def _pass(self) -> None:
        self._ownership.forget()
        self.progress.forget_exceptions()
        await self._erase_traces()
        await self._erase_work()
        for one in self._plan:
            await self._erase_records(one)
        await self._erase_loose_files()

    async def overwrite_deleted(self) -> None:
        """Let what is deleted from now on be overwritten, where the database can do that."""
        for adapter in self._databases():
            await disk.overwrite_deleted(adapter)

    async def erase_held(self, model: str, ids: Sequence[str]) -> ErasedBatch:
        """Erase records that an erasure left behind, with what is about them; those that are held stay.

        One that is another's by now is left to them, as far as its past is not the person's.
        """
        outcome = ErasedBatch()
        one = next((one for one in self._plan if one.meta.name == model), None)
        if one is None:  # no model has this name any more
            outcome.held += [(model, record_id) for record_id in ids]
            return outcome
        self._ownership.forget()
        own_ids, former_ids = (
            set(await self._ownership.ids_of(one)),
            (await self._ownership.past_of(one)).former,
        )
        for some in in_parts([record_id for record_id in ids if record_id in own_ids], BATCH):
            outcome.add(await self.erase_some(one, some))
        still_held = {record_id for _, record_id in outcome.held}
        for some in in_parts([record_id for record_id in ids if record_id not in still_held], BATCH):
            free_ids = sorted(set(some) - set(former_ids))
            outcome.add(await self._commit_past(one, free_ids, is_hers=True))
            outcome.add(await self._commit_past(one, sorted(set(some) & set(former_ids)), is_hers=False))
            for kind in await self._work.kinds():
                work_ids = await self._work.ids_about(kind, {one.meta.name: free_ids})
                for rows in in_parts(work_ids, ROWS):
                    outcome.add(await self._blank(kind, rows))
            outcome.add(await self._scrub_messages({one: free_ids}))
        return outcome

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
        if EVENTS.table in tables:  # what functions raised over them
            tables.add(MESSAGES.table)
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
        ids_by_name = {one.meta.name: ids for one, ids in record_ids.items()}
        for kind in await self._work.kinds():
            for some in in_parts(await self._work.ids_of(kind, ids_by_name), ROWS):
                await self._blank(kind, some)
        await self._scrub_messages(record_ids)

    async def _count_work(self) -> None:
        record_ids = await self._ids_by_model()
        ids_by_name = {one.meta.name: ids for one, ids in record_ids.items()}
        blanked: set[str] = set()
        for kind in await self._work.kinds():
            ids = await self._work.ids_of(kind, ids_by_name)
            self.progress.counts[kind.table] += len(ids)
            blanked.update(ids)
        async for page in self._work.trail_messages(record_ids):
            messages = [message_id for message_id, _ in page if message_id not in blanked]
            self.progress.counts[MESSAGES.table] += len(messages)

    async def _blank(self, kind: WorkTable, ids: Sequence[str]) -> ErasedBatch:
        async def blank(tx: Tx) -> ErasedBatch:
            return ErasedBatch(Counter({kind.table: await self._work.blank(kind, ids, tx)}))

        return await self._commit(self._adapter, blank)

    async def _scrub_messages(self, record_ids: Mapping[SubjectModel, Sequence[str]]) -> ErasedBatch:
        """Scrub what waits for the sinks of audit trails, or was delivered to them."""
        outcome = ErasedBatch()
        async for page in self._work.trail_messages(record_ids):

            async def scrub(tx: Tx, page: Sequence[tuple[str, str]] = page) -> ErasedBatch:
                return ErasedBatch(Counter({MESSAGES.table: await self._work.rewrite_messages(page, tx)}))

            outcome.add(await self._commit(self._adapter, scrub))
        return outcome

    async def _ids_by_model(self) -> dict[SubjectModel, list[str]]:
        """The records that are erased, by model; those that are gone, too."""
        record_ids: dict[SubjectModel, list[str]] = {}
        for one in self._plan:
            if one.treatment is Treatment.KEEP:
                continue
            ids = list((await self._ownership.past_of(one)).gone)
            for some in in_parts(await self._ownership.ids_of(one), BATCH):
                ids += set(some) - set(await self._records.held_ids(one, some))
            record_ids[one] = sorted(ids)
        return record_ids

    async def _past_parts(self, one: SubjectModel) -> AsyncIterator[tuple[Sequence[str], bool]]:
        """Records that are hers by their past alone, some at a time; whether nobody else has them."""
        if one.treatment is not Treatment.KEEP:
            past = await self._ownership.past_of(one)
            for ids, is_hers in ((past.gone, True), (past.former, False)):
                for some in in_parts(ids, BATCH):
                    yield some, is_hers

    async def _erase_records(self, one: SubjectModel) -> None:
        self._ownership.forget()  # of records that went with others, or were written meanwhile
        for some in in_parts(await self._ownership.ids_of(one), BATCH):
            await self.erase_some(one, some)
        async for ids, is_hers in self._past_parts(one):
            await self._commit_past(one, ids, is_hers=is_hers)

    async def _commit_past(self, one: SubjectModel, ids: Sequence[str], *, is_hers: bool) -> ErasedBatch:
        return await self._commit(
            one.store.adapter, lambda tx: self._records.erase_past(one, ids, tx, is_hers=is_hers)
        )

    async def erase_some(self, one: SubjectModel, ids: Sequence[str]) -> ErasedBatch:
        """Erase a batch of records; one by one where others keep some from going."""
        try:
            return await self._commit_records(one, ids, self._records.erase_batch)
        except DeleteRestricted:
            if len(ids) == 1:
                return await self._commit_records(one, ids, self._records.anonymise_batch)
        outcome = ErasedBatch()
        for record_id in ids:
            outcome.add(await self.erase_some(one, [record_id]))
        return outcome

    async def _commit_records(
        self,
        one: SubjectModel,
        ids: Sequence[str],
        erase: Callable[[SubjectModel, Sequence[str], Tx], Awaitable[ErasedBatch]],
    ) -> ErasedBatch:
        since = self._environment.clock.now()

        async def erase_with_events(tx: Tx) -> ErasedBatch:
            outcome = await erase(one, ids, tx)
            if one.store.adapter is self._adapter:
                await self._work.blank_new_events(one, ids, since, tx)
            return outcome

        return await self._commit(one.store.adapter, erase_with_events)

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
        for tries_left in reversed(range(_TRIES)):
            try:
                async with transaction(adapter) as tx:
                    if adapter is self._adapter:
                        await self._take_turn(tx)
                    outcome = await work(tx)
                    if adapter is self._adapter:
                        await self._note(outcome, tx)
                break
            except SerializationFailure:
                if not tries_left:
                    raise
        if adapter is not self._adapter:
            async with transaction(self._adapter) as tx:
                await self._take_turn(tx)
                await self._note(outcome, tx)
        self.progress.add(outcome)
        return outcome

    async def _take_turn(self, tx: Tx) -> None:
        """Lock the row, so that two who erase one person at once count nothing twice."""
        lock = by_dialect(tx.dialect, sqlite="", postgres=" FOR UPDATE")
        await tx.fetch(bind(f"SELECT id FROM erasure WHERE id = :id{lock}", tx.dialect, id=self._id))

    async def _note(self, outcome: ErasedBatch, tx: Tx) -> None:
        if not +outcome.counts:
            return
        [row] = await tx.fetch(bind("SELECT counts FROM erasure WHERE id = :id", tx.dialect, id=self._id))
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

    async def finish(self, tx: Tx) -> bool:
        """Note the end in the transaction that tells consumers of it; False where another call did."""
        await self._take_turn(tx)
        [row] = await tx.fetch(bind("SELECT state FROM erasure WHERE id = :id", tx.dialect, id=self._id))
        if row[0] == ErasureState.FINISHED:
            return False
        moment = parameters_of(tx.dialect).time(self._environment.clock.now())
        await self._set(tx, state=str(ErasureState.FINISHED), finished_at=moment)
        return True

    async def _set(self, tx: Tx, **values: object) -> None:
        json = by_dialect(tx.dialect, sqlite="{}", postgres="CAST({} AS json)")
        plain = ("state", "finished_at")
        changes = [f"{n} = {f':{n}' if n in plain else json.format(f':{n}')}" for n in values]
        moment = parameters_of(tx.dialect).time(self._environment.clock.now())
        text = f"UPDATE erasure SET {', '.join(changes)}, updated_at = :now WHERE id = :id"
        await tx.execute(bind(text, tx.dialect, id=self._id, now=moment, **values))
