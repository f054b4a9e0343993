"""Relays: claim a batch, hand each message to its handler, write down the outcomes, once or for ever.

`Drainer` and `OutboxWorker` both step a `Dispatcher`. Outcomes are written down when a batch is through, and
while it is on its way every `SETTLE_WITHIN`: a relay that is killed repeats no more than that. Outcomes
are kept until the database has taken them, so an outage between delivering and settling repeats
nothing. A handler that takes long is put aside with its message, and the other keys go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from functools import partial

from maniflex._clock import Backoff, Clock
from maniflex._fence import Fence
from maniflex.background.clock import may_take_over
from maniflex.background.leases import Held, LeaseKeeper
from maniflex.background.loop import Loop, WatchedPart
from maniflex.background.metrics import Metrics
from maniflex.background.outbox.delivery import (
    BatchDelivery,
    Courier,
    HandedBack,
    Relay,
    change,
    sequences_of,
)
from maniflex.background.outbox.model import (
    Batch,
    Claim,
    ClaimedMessage,
    MessageChange,
    MessageStatus,
    Settlement,
)
from maniflex.background.outbox.store import OutboxStore
from maniflex.background.partitions.keeper import PartitionRetention
from maniflex.background.partitions.layout import MESSAGES
from maniflex.db.current import current_tx, detached_context
from maniflex.db.port import Adapter
from maniflex.errors import DatabaseError

SETTLE_WITHIN = 0.1  # seconds from an outcome to the moment it is written
CLAIMS_PER_LOOKUP = 16  # of due kinds, as long as each claim fills its batch
_PAUSE = Backoff(base=timedelta(milliseconds=100), cap=timedelta(seconds=2))


class Dispatcher:
    """Delivers batch after batch; `stopping` is asked before every message.

    With `everywhere`, each claim looks into all partitions. `on_room` is called when a handler that was put
    aside has returned and that is written down: its key's next message can be claimed.
    """

    def __init__(
        self,
        store: OutboxStore,
        relay: Relay,
        stopping: Callable[[], bool] = lambda: False,
        *,
        everywhere: bool = False,
    ) -> None:
        self.delivered = 0
        self.on_room: Callable[[], object] = lambda: None
        self._store = store
        self._relay = relay
        self._handlers = relay.handlers
        self._policy = relay.policy
        self._clock = relay.clock
        self._logger = relay.logger
        self._metrics = relay.metrics
        self._stopping = stopping
        self._everywhere = everywhere
        self._next: Batch | None = None
        self._due_kinds: Sequence[str] = ()  # of the last claim, if it filled its batch
        self._claims_since_lookup = 0
        self._ran_dry = False  # these kinds; there may be others
        self._ledgers: list[Ledger] = []  # of the batches that are not through
        self._owed: list[Settlement] = []
        self._lost: set[str] = set()
        self._aside = SlowCouriers(relay, self._note_return)
        self._has_room = False  # one of those came back, and `on_room` was not called yet
        self._turns = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._flush_failures = 0
        count_error = partial(relay.metrics.add, "outbox_renewal_errors_total")
        self.lease_keeper = LeaseKeeper(
            store.adapter, self._renew, relay.policy.lease / 3, relay.logger, lambda error: count_error()
        )

    async def step(self) -> bool:
        """Deliver one batch; whether there is another, or may be."""
        self._ran_dry = False
        if self._next is None and not self._aside.full:
            await self._turn(claim=True)
        batch, self._next = self._next, None
        if batch is not None:
            await self._work(batch)
            await self._turn(claim=not self._stopping() and not self._aside.full)
        return self._has_more

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds that have a handler here, `*` among them."""
        return self._handlers.named_kinds

    @property
    def has_claimed(self) -> bool:
        """Whether it has messages that it has not begun to deliver."""
        return self._next is not None

    @property
    def _has_more(self) -> bool:
        return self._next is not None or self._ran_dry

    async def wait_for_aside(self) -> bool:
        """Wait until one of the handlers that take long returns; False when there is none."""
        if not self._aside:
            return False
        await wait_for_first(self._aside)
        await self._turn(claim=False)
        return True

    def cancel_aside(self) -> None:
        """Tell the handlers that take long to stop."""
        self._aside.cancel()

    async def hand_back(self) -> None:
        """Give back claimed messages that were not begun, and write outcomes until the database takes them.

        Handlers that run may finish first. The caller's deadline is the only limit.
        """
        async with self._turns:  # a claim on its way has its answer
            batch, self._next = self._next, None
        if batch is not None:
            self._close(Ledger(batch))
        try:
            while self._aside:
                await wait_for_first(self._aside)
        except asyncio.CancelledError:
            self._aside.cancel()
            raise
        failures, fence = 0, Fence()
        while self._owed or self._ledgers:
            try:
                await self._turn(claim=False)
            except BaseException as error:
                fence.absorb(error)
                failures += 1
                self._metrics.add("outbox_settle_errors_total")
                if failures == 1:
                    self._logger.warning("outbox: outcomes could not be written yet: %s", error)
                await asyncio.sleep(_PAUSE(failures).total_seconds())

    async def finish(self) -> None:
        """`hand_back` with the deadline of the policy, where the caller sets none."""
        await self.in_time(self.hand_back())

    async def in_time(self, stopping: Awaitable[None]) -> None:
        """Wait for it no longer than a shutdown may take."""
        try:
            async with asyncio.timeout(self._policy.grace.total_seconds()):
                await stopping
        except TimeoutError:
            self._logger.error("outbox: what is claimed stays so until its lease ends")

    # -- writing down

    def on_outcome(self) -> None:
        """Write the outcome down soon, should the batch not be through by then."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_WITHIN, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._write_outcomes(), context=detached_context())

    async def _write_outcomes(self) -> None:
        try:
            await self._turn(claim=False)
        except Exception as error:
            self._flush_failures += 1
            self._metrics.add("outbox_settle_errors_total")
            if self._flush_failures == 1:
                self._logger.warning("outbox: outcomes could not be written yet: %s", error)
            if self._timer is None:
                pause = _PAUSE(self._flush_failures).total_seconds()
                self._timer = asyncio.get_running_loop().call_later(pause, self._flush)

    async def _turn(self, *, claim: bool) -> None:
        """Write the open settlements and claim `_next`, to the end even if the caller is cancelled."""
        await asyncio.shield(asyncio.ensure_future(self._take_turn(claim)))

    async def _take_turn(self, claim: bool) -> None:
        async with self._turns:
            now, policy = self._clock.now(), self._policy
            claim_request = None
            if claim:
                until, takes_over = now + policy.lease, may_take_over(self._clock)
                claim_request = Claim(
                    policy.owner,
                    self._handlers.kinds,
                    policy.batch,
                    until,
                    takes_over,
                    self._due_kinds,
                    self._everywhere,
                    self._handlers.named_kinds,
                )
            settlements = self._collect()
            settled_ids, batch = await self._store.turn(settlements, claim_request, now)
            del self._owed[: len(settlements)]
            self._flush_failures = 0
            for settlement in settlements:
                self._note_settled(settlement, settled_ids)
            if claim_request is not None:
                self._remember_kinds(batch)
            if batch is not None:
                self._next = batch
                self._metrics.add("outbox_claimed_total", len(batch.messages))
                for lease in batch.held_leases():
                    self.lease_keeper.hold(lease, partial(self._lost.add, lease.id))
        if self._has_room:
            self._has_room = False
            self.on_room()

    def _remember_kinds(self, batch: Batch | None) -> None:
        """Keep the due kinds of a full batch for the next claims, so that not each has to look them up."""
        self._ran_dry = batch is None and bool(self._due_kinds)
        self._claims_since_lookup = self._claims_since_lookup + 1 if self._due_kinds else 0
        full = batch is not None and len(batch.messages) == self._policy.batch
        keeps = full and self._claims_since_lookup < CLAIMS_PER_LOOKUP
        self._due_kinds = batch.due_kinds if batch is not None and keeps else ()

    def _collect(self) -> list[Settlement]:
        """All settlements the database has not taken, with the outcomes since the last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._owed += [part for ledger in self._ledgers if (part := ledger.cut()) is not None]
        self._ledgers = [ledger for ledger in self._ledgers if not ledger.is_done]
        return list(self._owed)

    def _note_settled(self, settlement: Settlement, settled_ids: set[str]) -> None:
        lease = settlement.batch.lease
        for message in settlement.messages:
            self.lease_keeper.drop(Held(message.id, lease))
            self._lost.discard(message.id)
        if lost_count := sum(message.id not in settled_ids for message in settlement.messages):
            self._metrics.add("outbox_lease_losses_total", lost_count)
            self._logger.warning("outbox: %d messages were taken over by another relay", lost_count)
        delivered_ids = settled_ids.intersection(settlement.delivered)
        self.delivered += len(delivered_ids)
        kinds = Counter(message.kind for message in settlement.messages if message.id in delivered_ids)
        for kind, count in kinds.items():
            self._relay.notes.note_delivered(kind, count)

    async def _renew(self, adapter: Adapter, held: Sequence[Held]) -> set[str]:
        until = self._clock.now() + self._policy.lease
        lost_ids = await self._store.renew(adapter, held, until)
        leases = {one.lease for one in held}
        for ledger in self._ledgers:
            if ledger.batch.lease in leases:
                ledger.batch.until = until
        return lost_ids

    # -- one batch

    async def _work(self, batch: Batch) -> None:
        ledger = Ledger(batch)
        self._ledgers.append(ledger)
        try:
            if self._relay.prepare is not None:
                await self._relay.prepare(batch.messages)
            await self._run(BatchDelivery(sequences_of(batch.messages, self._policy.concurrency), ledger))
        except BaseException:
            self._close(ledger)
            with suppress(Exception):  # `hand_back` tries again
                await self._turn(claim=False)
            raise
        self._close(ledger)

    def _close(self, ledger: Ledger) -> None:
        """Hand back messages that have no outcome and are not being delivered."""
        under_way = [courier.message for courier in self._aside if courier.message is not None]
        self._hand_back(ledger, ledger.without_outcome(under_way))
        if ledger not in self._ledgers:
            self._ledgers.append(ledger)

    def _hand_back(self, ledger: Ledger, messages: Iterable[ClaimedMessage]) -> None:
        now = self._clock.now()
        for message in messages:
            ledger.change(change(message, HandedBack(), self._policy, now))

    async def _run(self, round: BatchDelivery) -> None:
        """Have couriers deliver the messages, with one more for each that does not come back soon."""
        active = {self._courier(round) for _ in range(self._policy.concurrency)}
        try:
            while active:
                await wait_for_first(active, self._aside.seconds_until_slow(active))
                for courier in list(active):
                    if courier.is_done:
                        active.discard(courier)
                        courier.raise_failure()
                    elif self._aside.take(courier):
                        active.discard(courier)
                        if not self._aside.full:
                            active.add(self._courier(round))
        except BaseException:
            active.update(self._aside)
            for courier in active:
                courier.cancel()
            await _all(active)
            raise

    def _courier(self, round: BatchDelivery) -> Courier:
        return Courier(round, self._relay, self)

    def may_begin(self, message: ClaimedMessage, ledger: Ledger) -> bool | None:
        """Whether a courier may deliver the message; None when it has to stop."""
        if self._stopping() or self._clock.now() >= ledger.batch.until:
            return None
        return message.id not in self._lost

    # -- what couriers tell

    def _note_return(self, courier: Courier) -> None:
        """The handler of a courier that was put aside has returned."""
        self._has_room = True
        if courier.unfinished is not None:
            unfinished_id, ledger = courier.unfinished.id, courier.ledger
            self._hand_back(ledger, [one for one in ledger.without_outcome() if one.id == unfinished_id])
        try:
            courier.raise_failure()
        except asyncio.CancelledError:
            pass
        except Exception:
            self._logger.exception("outbox: a delivery failed for a reason that is not its handler's")
        self.on_outcome()

    def report(self, message: ClaimedMessage, row_change: MessageChange) -> None:
        """Count and log a message that was not delivered."""
        if row_change.status is MessageStatus.DEAD:
            self._relay.notes.note_dead(message, row_change)
        else:
            self._relay.notes.note_failed(message, row_change)


async def _all(couriers: Iterable[Courier]) -> None:
    if tasks := [courier.task for courier in couriers]:
        await asyncio.wait(tasks)


# The outcomes of a batch as they come in, to be written down in parts.


class Ledger:
    """The outcomes of the messages of one batch; messages without an outcome are open."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self._open = {message.id: message for message in batch.messages}
        self._delivered: list[str] = []
        self._forgotten: list[str] = []
        self._changes: list[MessageChange] = []

    def deliver(self, message: ClaimedMessage, *, forget: bool = False) -> None:
        """The message was delivered; with `forget` its row keeps no payload."""
        self._delivered.append(message.id)
        if forget:
            self._forgotten.append(message.id)

    def change(self, change: MessageChange) -> None:
        """The message was not delivered and its row changes like this."""
        self._changes.append(change)

    @property
    def unsettled_count(self) -> int:
        """How many outcomes are not part of any settlement yet."""
        return len(self._delivered) + len(self._changes)

    @property
    def is_done(self) -> bool:
        """Whether every message has an outcome that is part of a settlement."""
        return not self._open

    def without_outcome(self, under_way: Iterable[ClaimedMessage] = ()) -> list[ClaimedMessage]:
        """The messages without an outcome, except for those that are being delivered."""
        if self.unsettled_count == len(self._open):
            return []
        excluded_ids = {*self._delivered, *(change.id for change in self._changes)}
        excluded_ids.update(message.id for message in under_way)
        return [message for id, message in self._open.items() if id not in excluded_ids]

    def cut(self) -> Settlement | None:
        """The outcomes since the last cut; a key is free when no message of it is open any more."""
        if not self.unsettled_count:
            return None
        delivered_ids, self._delivered = self._delivered, []
        changes, self._changes = self._changes, []
        forgotten, self._forgotten = self._forgotten, []
        messages = [self._open.pop(id) for id in (*delivered_ids, *(change.id for change in changes))]
        keys = {message.key for message in messages} - {message.key for message in self._open.values()}
        own_keys = [key for key in keys if key is not None]
        return Settlement(self.batch, delivered_ids, changes, messages, own_keys, forgotten)


# Couriers whose handlers take long: each is put aside with its message, and the other keys go on.


SHORTEST_LOOK = 0.01


class SlowCouriers:
    """Those that were put aside; `on_return` is told of each whose handler has returned."""

    def __init__(self, relay: Relay, on_return: Callable[[Courier], None]) -> None:
        self._couriers: set[Courier] = set()
        self._on_return = on_return
        self._policy = relay.policy
        self._logger = relay.logger
        self._metrics = relay.metrics
        self._look = min(relay.policy.slow_after, relay.handlers.least_timeout).total_seconds()
        self._watching: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[Courier]:
        return iter(self._couriers)

    def __len__(self) -> int:
        return len(self._couriers)

    @property
    def full(self) -> bool:
        """Whether so many are aside that the relay claims nothing more."""
        return len(self._couriers) >= self._policy.most_aside

    def seconds_until_slow(self, couriers: Iterable[Courier]) -> float:
        """When to look at these couriers again."""
        return max(self._look - max(courier.handler_seconds() for courier in couriers), SHORTEST_LOOK)

    def take(self, courier: Courier) -> bool:
        """Put a courier aside whose handler takes long; whether it does."""
        self._check_timeout(courier)
        if courier.handler_seconds() < self._policy.slow_after.total_seconds():
            return False
        courier.put_aside()
        self._couriers.add(courier)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), context=detached_context())
        return True

    def cancel(self) -> None:
        """Tell all their handlers to stop."""
        for courier in self._couriers:
            courier.cancel()

    async def _watch(self) -> None:
        """Watch them until there are none."""
        while self._couriers:
            await wait_for_first(self._couriers, self._look)
            for courier in list(self._couriers):
                if courier.is_done:
                    self._couriers.discard(courier)
                    self._on_return(courier)
                else:
                    self._check_timeout(courier)

    def _check_timeout(self, courier: Courier) -> None:
        message = courier.message
        if message is not None and courier.check_timeout():
            self._metrics.add("outbox_timeouts_total", kind=message.kind)
            self._logger.warning(
                "outbox: the handler of %s %s takes longer than its timeout", message.kind, message.id
            )


async def wait_for_first(couriers: Iterable[Courier], timeout: float | None = None) -> None:
    """Wait until one of the couriers is done, or time is up."""
    tasks = [courier.task for courier in couriers]
    await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


# The relay that stays: it delivers messages as they come.


class OutboxWorker(Loop):
    """Polls the outbox, catches up without a pause, and is woken when something is enqueued."""

    name = "outbox"

    def __init__(
        self,
        store: OutboxStore,
        dispatcher: Callable[[Callable[[], bool]], Dispatcher],
        clock: Clock,
        interval: timedelta,
        logger: logging.Logger,
        metrics: Metrics,
    ) -> None:
        super().__init__(clock, interval, logger)
        self._store = store
        self._metrics = metrics
        self._dispatcher = dispatcher(lambda: self.stopping)
        self._dispatcher.on_room = self.wake
        self._open = AsyncExitStack()

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of messages that it takes; `*` for all of the application that nobody names."""
        return self._dispatcher.kinds

    @property
    def delivered(self) -> int:
        """How many messages this worker has delivered."""
        return self._dispatcher.delivered

    @property
    def parts_to_watch(self) -> Sequence[WatchedPart]:
        return (self, self._dispatcher.lease_keeper)

    async def tick(self) -> bool:
        return await self._dispatcher.step()

    def on_failure(self, error: BaseException) -> None:
        self._metrics.add("outbox_poll_errors_total")

    async def start(self) -> None:
        try:
            await self._dispatcher.lease_keeper.start()
            await super().start()
            await self._open.enter_async_context(self._store.listen(self.wake))
        except BaseException:
            await self._dispatcher.in_time(self.stop())
            raise

    async def stop(self) -> None:
        """Claim nothing more, let the running handler finish and give back the rest."""
        async with AsyncExitStack() as last:  # each, though another fails
            last.push_async_callback(self._dispatcher.lease_keeper.stop)
            last.push_async_callback(self._open.aclose)
            await super().stop()
            await self._dispatcher.hand_back()

    async def run(self) -> None:
        """Work until this is cancelled."""
        await self.start()
        try:
            await asyncio.Event().wait()
        finally:
            await self._dispatcher.in_time(self.stop())


# One pass over the outbox: for a job that is started every minute and ends.


class Drainer:
    """Delivers until nothing is left to claim; may be used again and again, beside any other relay."""

    def __init__(self, adapter: Adapter, dispatcher: Callable[[], Dispatcher]) -> None:
        self._adapter = adapter
        self._dispatcher = dispatcher

    async def drain(self, progress: Callable[[int], object] = lambda delivered: None) -> int:
        """How many messages were delivered; `progress` is told after each batch."""
        if current_tx(self._adapter) is not None:
            raise DatabaseError("drain() inside a transaction would deliver what may be rolled back")
        dispatcher = self._dispatcher()
        await dispatcher.lease_keeper.start()
        try:
            more = True
            while more:
                more = await dispatcher.step() or await dispatcher.wait_for_aside()
                progress(dispatcher.delivered)
            return dispatcher.delivered
        except asyncio.CancelledError:
            dispatcher.cancel_aside()
            raise
        finally:
            try:
                await dispatcher.finish()  # there is something only when we were cancelled or a step failed
            finally:
                await dispatcher.lease_keeper.stop()


# Removes messages that were delivered long ago, and what the inbox remembers of such.


PRUNE_EVERY = timedelta(minutes=1)
PRUNE_AT_ONCE = 500


class MessagePruner(Loop):
    """Removes messages and inbox records from long ago, in small batches or as whole partitions."""

    name = "outbox pruner"

    def __init__(
        self, store: OutboxStore, retention: timedelta, clock: Clock, logger: logging.Logger
    ) -> None:
        super().__init__(clock, PRUNE_EVERY, logger)
        self._store = store
        self._retention = retention
        self._partitions = PartitionRetention(store.adapter, MESSAGES)

    async def tick(self) -> bool:
        before = self.clock.now() - self._retention
        tables = await self._partitions.tables_to_prune(before)
        counts = [await self._store.prune(before, PRUNE_AT_ONCE, table) for table in tables]
        counts.append(await self._store.prune_inbox(before, PRUNE_AT_ONCE))
        return PRUNE_AT_ONCE in counts
