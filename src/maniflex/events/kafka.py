"""Events in one topic of Kafka, a consumer group for each subscription; needs `maniflex[kafka]`.

The record's key is the event's, its headers are the attributes (`ce_…`), its value the data. Events of a key
are in one partition and are handled one after another. A thread polls for each subscription, so that a long
handler costs no membership; it commits an offset when all earlier records of the partition are done with.
What is revoked is finished first, for a while, and committed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from maniflex._threads import DaemonThreads, on_thread
from maniflex.errors import DeclarationError, Timeout, Unavailable, ValidationFailed
from maniflex.events import cloudevents
from maniflex.events.base import BaseBus, check_count, seconds_of
from maniflex.events.cloudevents import UnreadableEvent
from maniflex.events.consuming import Consumer, Gone, Lanes, TakenMessage, log
from maniflex.events.event import Event
from maniflex.events.port import Disconnected, SubscriptionPlan

try:
    import confluent_kafka
    from confluent_kafka import KafkaError, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic
except ImportError as missing:
    raise DeclarationError("KafkaBus needs confluent-kafka: pip install 'maniflex[kafka]'") from missing

T = TypeVar("T")
WAIT = 0.3  # seconds that a take waits for records
POLL = 0.1
POLL_HELD = 0.005  # while records wait for the one before them
MARK = "maniflex:"  # begins what is committed beside an offset
AT_ONCE = 100  # records of one poll
MOST_AHEAD = 200  # records of a partition that wait or are in hand; beyond that it is paused
REVOKED_WITHIN = 20.0  # seconds that handlers have when their partition goes to another consumer
LARGEST = 1_000_000  # bytes of a record, unless `config` says otherwise
_OWN_SETTINGS = frozenset(
    {"bootstrap.servers", "group.id", "enable.auto.commit", "enable.idempotence", "acks"}
)
_client_log = logging.getLogger("maniflex.events.kafka")  # what the client itself says
# `config` is for all kinds of clients, and each would warn of what is meant for another kind.
_client_log.addFilter(lambda record: "CONFWARN" not in record.getMessage())


class KafkaBus(BaseBus):
    """Events in a topic; `config` (SASL, TLS) is for producer, consumers and the administration alike."""

    ordered = True

    def __init__(
        self,
        bootstrap: str = "127.0.0.1:9092",
        *,
        topic: str = "maniflex.events",
        partitions: int = 3,
        replication: int = 1,
        create: bool = True,
        config: Mapping[str, Any] | None = None,
        timeout: timedelta | float = timedelta(seconds=5),
        on_disconnected: Disconnected | None = None,
    ) -> None:
        super().__init__(on_disconnected)
        [self.timeout] = seconds_of("KafkaBus", timeout=timeout)
        check_count("KafkaBus", "partitions", partitions)
        check_count("KafkaBus", "replication", replication)
        own = sorted(_OWN_SETTINGS & set(config or {}))
        if own:
            raise DeclarationError(f"KafkaBus: config may not have {', '.join(own)}; the bus sets it")
        self.topic = topic
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._replication = replication
        self._create = create
        self._config = dict(config or {})
        self._threads = DaemonThreads(8, "maniflex-kafka")
        self._producer: _RecordProducer | None = None
        self._making = asyncio.Lock()

    def __repr__(self) -> str:
        return f"KafkaBus({self._bootstrap!r}, topic={self.topic!r})"

    def group_of(self, plan: SubscriptionPlan) -> str:
        """The id of the consumer group of a subscription."""
        return f"{self.topic}.{plan.id}"

    # -- for BaseBus

    async def connect(self) -> None:
        async with self._making:
            if self._producer is None or self._producer.is_fatal:
                await self._close_producer()
                async with self.translating():
                    await self.on_thread(self._make_topic)
                self._producer = _RecordProducer(
                    self.settings(**{"message.timeout.ms": int(self.timeout * 1000)})
                )

    def _make_topic(self) -> None:
        admin = AdminClient(self.settings())
        if self.topic in admin.list_topics(timeout=self.timeout).topics:
            return
        if not self._create:
            raise DeclarationError(f"KafkaBus: there is no topic {self.topic!r}, and create=False")
        topic = NewTopic(self.topic, self._partitions, self._replication)
        [outcome] = admin.create_topics([topic], request_timeout=self.timeout).values()
        try:
            outcome.result(timeout=self.timeout)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    async def hang_up(self) -> None:
        async with self._making:
            await self._close_producer()

    async def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    async def send(self, events: Sequence[Event]) -> None:
        records = [self._record_of(event) for event in events]
        await self.connect()
        producer = self._producer
        assert producer is not None
        batch = _SentRecords(len(records))
        async with self.translating(spare=1):
            for key, headers, value in records:
                await producer.produce(self.topic, key, headers, value, batch)
            await batch.outcome

    def _record_of(self, event: Event) -> tuple[bytes | None, list[tuple[str, bytes]], bytes]:
        headers, value = cloudevents.binary(event, cloudevents.KAFKA)
        most = int(self._config.get("message.max.bytes", LARGEST))
        if len(value) + sum(len(name) + len(text.encode()) + 8 for name, text in headers.items()) > most:
            message = f"is larger than the records that Kafka takes ({most} bytes)"
            raise ValidationFailed(f"the event {message}", [{"field": "data", "message": message}])
        key = None if event.key is None else event.key.encode()
        return key, [(name, text.encode()) for name, text in headers.items()], value

    def consumer(self, plan: SubscriptionPlan) -> Consumer:
        return _KafkaConsumer(plan, self)

    async def remove(self, plan: SubscriptionPlan) -> None:
        async with self.translating(spare=1):
            await self.on_thread(partial(self._delete_group, self.group_of(plan)))

    def _delete_group(self, group: str) -> None:
        admin = AdminClient(self.settings())
        [outcome] = admin.delete_consumer_groups([group], request_timeout=self.timeout).values()
        try:
            outcome.result(timeout=self.timeout)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise

    # -- for its consumers

    def settings(self, **own: Any) -> dict[str, Any]:
        """What every client of the bus is made with."""
        return {**self._config, "bootstrap.servers": self._bootstrap, "logger": _client_log, **own}

    def consumer_settings(self, plan: SubscriptionPlan, **own: Any) -> dict[str, Any]:
        return self.settings(
            **{
                "group.id": self.group_of(plan),
                "enable.auto.commit": False,
                # Where a group begins is committed before; what is added later is read whole.
                "auto.offset.reset": "earliest",
                **own,
            }
        )

    async def on_thread(self, call: Callable[[], T]) -> T:
        """Call the client, which blocks, on a thread of the bus."""
        return await on_thread(call, self._threads)

    @asynccontextmanager
    async def translating(self, spare: float = 0) -> AsyncIterator[None]:
        """A block that asks Kafka, no longer than the timeout; what fails is `Unavailable` or `Timeout`."""
        try:
            async with asyncio.timeout(self.timeout + spare):
                yield
        except TimeoutError:
            raise Timeout("Kafka took too long") from None
        except KafkaException as error:
            reason = error.args[0]
            if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                message = "is larger than the records that Kafka takes"
                raise ValidationFailed(
                    f"the event {message}", [{"field": "data", "message": message}]
                ) from None
            if reason.code() in (KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT):
                raise Timeout("Kafka took too long") from None
            raise Unavailable(f"Kafka cannot be used right now: {reason.str()}") from None


class _SentRecords:
    """Records on their way; its outcome comes with the last report."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[None] = self._loop.create_future()
        self._count = count
        self._error: KafkaError | None = None
        if not count:
            self.outcome.set_result(None)

    def report(self, error: KafkaError | None, record: Any) -> None:
        """Called by the thread of the producer, for one record after another."""
        self._error = self._error or error
        self._count -= 1
        if not self._count:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        if self.outcome.done():
            return
        if self._error is None:
            self.outcome.set_result(None)
        else:
            self.outcome.set_exception(KafkaException(self._error))


class _RecordProducer:
    """The producer, and the thread that hears what became of records."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.is_fatal = False
        own = {"enable.idempotence": True, "acks": "all", "linger.ms": 2, "error_cb": self._note}
        self._producer = confluent_kafka.Producer({**settings, **own})
        self._ending = threading.Event()
        threading.Thread(target=self._run, name="maniflex-kafka-producer", daemon=True).start()

    def _note(self, error: KafkaError) -> None:
        self.is_fatal = self.is_fatal or error.fatal()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._producer.poll(POLL)
        self._producer.flush(1)

    async def produce(
        self, topic: str, key: bytes | None, headers: Any, value: bytes, batch: _SentRecords
    ) -> None:
        """Give it to the client, and wait while the client's queue is full."""
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers, on_delivery=batch.report)
                return
            except BufferError:
                await asyncio.sleep(0.01)

    def close(self) -> None:
        """Let the thread end, behind what is on its way."""
        self._ending.set()


class _OwnedPartition:
    """The records of one partition that are ours for now, in the order of their offsets."""

    def __init__(self, number: int, first: int = -1, deaths: int = 0) -> None:
        self.number = number
        self.first = first  # the offset that was committed when it became ours; -1: none was
        self.deaths = deaths  # of consumers that had it before, while that was their first unfinished record
        self.careful_until = first + MOST_AHEAD if deaths else -1
        self.held: deque[_KafkaMessage] = deque()  # that wait until the one before them is committed
        self.offsets: deque[int] = deque()  # that are not committed
        self.finished: set[int] = set()
        self.in_hand = 0
        self.is_handed = False  # the first of its records, where they are handed on one at a time
        self.is_revoked = False
        self.is_paused = False
        self.position = first  # that is committed

    def pass_finished(self) -> int | None:
        """The offset to commit, if there is another: behind the last record with none unfinished before."""
        position = None
        while self.offsets and self.offsets[0] in self.finished:
            position = self.offsets.popleft() + 1
            self.finished.discard(position - 1)
            self.is_handed = False
        return position

    def hand_on(self, message: _KafkaMessage) -> list[_KafkaMessage]:
        """What may be begun, now that this record has come."""
        self.offsets.append(message.offset)
        if message.offset == self.first:
            message.begun = self.deaths
        self.held.append(message)
        return self.release()

    def release(self) -> list[_KafkaMessage]:
        """What may be begun: all, or one record at a time where one of them may end its consumers."""
        if self.held and self.held[0].offset < self.careful_until:
            if self.is_handed or self.held[0].offset != self.offsets[0]:
                return []
            self.is_handed = True
            return [self.held.popleft()]
        messages = list(self.held)
        self.held.clear()
        return messages

    def mark(self) -> str:
        """What is committed beside an offset: how many consumers have it, or had it and ended, unfinished."""
        return f"{MARK}{1 if self.offsets else 0}"


class _KafkaConsumer(Consumer):
    def __init__(self, plan: SubscriptionPlan, bus: KafkaBus) -> None:
        super().__init__(plan, bus.send_letter)
        self._bus = bus
        self._loop = asyncio.get_running_loop()
        self._lanes: Lanes[_KafkaMessage] = Lanes()
        self._changed = asyncio.Event()
        self._poller = _PollingThread(bus, plan, self._receive)

    # -- on the event loop

    async def prepare(self) -> None:
        async with self._bus.translating(spare=1):
            await self._bus.on_thread(self._commit_start)

    async def start(self) -> None:
        await super().start()
        self._poller.start()

    def _commit_start(self) -> None:
        """Note where a new group begins, before anything else is published."""
        bus, timeout = self._bus, self._bus.timeout
        client = confluent_kafka.Consumer(bus.consumer_settings(self.plan))
        try:
            numbers = client.list_topics(bus.topic, timeout=timeout).topics[bus.topic].partitions
            places = [TopicPartition(bus.topic, number) for number in numbers]
            if any(place.offset >= 0 for place in client.committed(places, timeout=timeout)):
                return
            starts = []
            for place in places:
                low, high = client.get_watermark_offsets(place, timeout=timeout)
                offset = low if self.plan.start == "beginning" else high
                starts.append(TopicPartition(bus.topic, place.partition, offset))
            with suppress(KafkaException):  # another consumer of the group is at work, and has done it
                client.commit(offsets=starts, asynchronous=False)
        finally:
            client.close()

    def _receive(self, messages: Sequence[_KafkaMessage]) -> None:
        for message in messages:
            self._lanes.add(message.lane, message)
        self._changed.set()

    async def take(self, room: int) -> Sequence[TakenMessage]:
        if (problem := self._poller.problem) is not None:
            raise Unavailable(f"Kafka cannot be used right now: {problem}")
        deliveries = self._take_waiting(room)
        if not deliveries and not self._stopping.is_set():
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT):
                    await self._changed.wait()
            deliveries = self._take_waiting(room)
        return deliveries

    def _take_waiting(self, room: int) -> list[TakenMessage]:
        deliveries: list[TakenMessage] = []
        while len(deliveries) < room and (item := self._lanes.take()) is not None:
            lane, message = item
            if self._poller.take(message):
                message.owner = self
                deliveries.append(message)
            else:  # its partition belongs to another consumer by now
                self._lanes.finish(lane)
        return deliveries

    def let_go(self, message: _KafkaMessage) -> None:
        self._lanes.finish(message.lane)
        self._poller.let_go(message)
        self._changed.set()

    async def stop_taking(self) -> None:
        self._changed.set()

    async def finish(self) -> None:
        self._poller.end()
        await self._bus.on_thread(self._poller.join)


class _PollingThread:
    """The thread of one subscription: polls, pauses, commits and answers rebalances."""

    def __init__(
        self, bus: KafkaBus, plan: SubscriptionPlan, receive: Callable[[Sequence[_KafkaMessage]], None]
    ) -> None:
        self._bus = bus
        self._plan = plan
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[int, _OwnedPartition] = {}
        self._lost: dict[int, tuple[int, int]] = {}  # by partition, the offset and the mark that we left
        self._lock = threading.Condition()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="maniflex-kafka-consumer", daemon=True)
        self.problem: str | None = None  # why the brokers cannot be reached

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending.set()

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join(self._bus.timeout)

    # -- on the event loop

    def take(self, message: _KafkaMessage) -> bool:
        """Whether the record is still ours to work on."""
        with self._lock:
            if message.partition.is_revoked:
                return False
            message.partition.in_hand += 1
            return True

    def finish(self, message: _KafkaMessage) -> bool:
        """The record is done with; whether that can still be committed."""
        with self._lock:
            if self._partitions.get(message.partition.number) is not message.partition:
                return False
            message.partition.finished.add(message.offset)
            return True

    def let_go(self, message: _KafkaMessage) -> None:
        with self._lock:
            message.partition.in_hand -= 1
            self._lock.notify_all()

    # -- on the thread

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._consume()
            except BaseException as error:  # whatever ends it: nobody would hear events any more
                self.problem = str(error)
                log.error("group %s: its thread ended and begins again", self._plan.group, exc_info=error)
                self._ending.wait(1)

    def _consume(self) -> None:
        settings = self._bus.consumer_settings(self._plan, error_cb=self._note_error)
        consumer = confluent_kafka.Consumer(settings)
        try:
            consumer.subscribe(
                [self._bus.topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose
            )
            while not self._ending.is_set():
                is_held = any(part.held for part in self._partitions.values())
                self._hand_on(consumer.consume(AT_ONCE, POLL_HELD if is_held else POLL))
                self._commit(consumer)
                self._hand_on_held()
                self._pause_and_resume(consumer)
                if self.problem is not None:
                    self._look(consumer)
            self._commit(consumer)
            self._take_marks_off(consumer, list(self._partitions))
        finally:
            consumer.close()

    def _note_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN or error.fatal():
            self.problem = error.str()
        if error.fatal():
            raise KafkaException(error)

    def _look(self, consumer: Any) -> None:
        """Whether the brokers answer again."""
        with suppress(KafkaException):
            consumer.list_topics(self._bus.topic, timeout=1)
            self.problem = None

    def _hand_on(self, records: Sequence[Any]) -> None:
        messages = []
        with self._lock:
            for record in records:
                if record.error() is not None:
                    continue  # what matters comes by `_note_error`
                part = self._partitions.get(record.partition())
                if part is not None and not part.is_revoked:
                    messages += part.hand_on(_KafkaMessage(self, part, record))
        self._give(messages)

    def _hand_on_held(self) -> None:
        with self._lock:
            parts = [part for part in self._partitions.values() if part.held and not part.is_revoked]
            messages = [message for part in parts for message in part.release()]
        self._give(messages)

    def _give(self, messages: Sequence[_KafkaMessage]) -> None:
        if messages:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._receive, messages)

    def _commit(self, consumer: Any, numbers: Sequence[int] | None = None) -> None:
        """Commit what is done; where that fails, what follows commits it."""
        with self._lock:
            parts = [p for p in self._partitions.values() if numbers is None or p.number in numbers]
            places = [
                TopicPartition(self._bus.topic, part.number, position, part.mark())
                for part in parts
                if (position := part.pass_finished()) is not None
            ]
            for place in places:
                self._partitions[place.partition].position = place.offset
        while places:
            try:
                consumer.commit(offsets=places, asynchronous=False)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or self._ending.wait(POLL):
                    log.warning(
                        "group %s: offsets are not committed: %s", self._plan.group, error.args[0].str()
                    )
                    return

    def _pause_and_resume(self, consumer: Any) -> None:
        with self._lock:
            full = [p for p in self._partitions.values() if not p.is_paused and len(p.offsets) > MOST_AHEAD]
            free = [p for p in self._partitions.values() if p.is_paused and len(p.offsets) <= MOST_AHEAD / 2]
            for part in (*full, *free):
                part.is_paused = not part.is_paused
        if full:
            consumer.pause([TopicPartition(self._bus.topic, part.number) for part in full])
        if free:
            consumer.resume([TopicPartition(self._bus.topic, part.number) for part in free])

    def _assign(self, consumer: Any, places: Sequence[Any]) -> None:
        """Take partitions, and count the consumers that ended with the first record of each in hand.

        Whoever has a partition leaves a mark beside the offset that is committed, and takes it off when it
        lets go. A mark that is still there is that of a consumer that did not live to do so.
        """
        marks = self._read_marks(consumer, places)
        parts = [_OwnedPartition(place.partition, *marks.get(place.partition, (-1, 0))) for place in places]
        with self._lock:
            self._partitions |= {part.number: part for part in parts}
        self._write_marks(consumer, {part.number: part.deaths + 1 for part in parts})

    def _read_marks(self, consumer: Any, places: Sequence[Any]) -> dict[int, tuple[int, int]]:
        """The committed offsets, each with the number of consumers that ended there."""
        marks: dict[int, tuple[int, int]] = {}
        questions = [TopicPartition(self._bus.topic, place.partition) for place in places]
        with suppress(KafkaException):  # then nobody is counted
            for place in consumer.committed(questions, timeout=self._bus.timeout):
                mark = (place.metadata or "").removeprefix(MARK)
                count = int(mark) if mark.isdecimal() else 0
                if self._lost.pop(place.partition, None) == (place.offset, count):
                    count -= 1  # the mark is our own: the partition was lost while we lived
                if place.offset >= 0:
                    marks[place.partition] = place.offset, max(0, count)
        return marks

    def _write_marks(self, consumer: Any, counts: Mapping[int, int]) -> None:
        with self._lock:
            parts = [self._partitions[number] for number in counts if number in self._partitions]
        places = [
            TopicPartition(self._bus.topic, part.number, part.position, f"{MARK}{counts[part.number]}")
            for part in parts
            if part.position >= 0
        ]
        if places:
            with suppress(KafkaException):
                consumer.commit(offsets=places, asynchronous=False)

    def _take_marks_off(self, consumer: Any, numbers: Sequence[int]) -> None:
        self._write_marks(consumer, dict.fromkeys(numbers, 0))

    def _revoke(self, consumer: Any, places: Sequence[Any]) -> None:
        """Begin nothing more, let what runs end, commit, and let go."""
        numbers = [place.partition for place in places]
        with self._lock:
            parts = [self._partitions[number] for number in numbers if number in self._partitions]
            for part in parts:
                part.is_revoked = True
            deadline = time.monotonic() + REVOKED_WITHIN
            self._lock.wait_for(
                lambda: not any(part.in_hand for part in parts), max(0.0, deadline - time.monotonic())
            )
        with suppress(KafkaException):
            self._commit(consumer, numbers)
            self._take_marks_off(consumer, numbers)
        self._let_go_of(places)

    def _lose(self, consumer: Any, places: Sequence[Any]) -> None:
        """The group went on without us; the marks stay, and are known as ours when we are back."""
        for part in self._let_go_of(places):
            count = part.deaths + 1 if part.position == part.first else 1
            self._lost[part.number] = part.position, count

    def _let_go_of(self, places: Sequence[Any]) -> list[_OwnedPartition]:
        with self._lock:
            old_parts = [self._partitions.pop(place.partition, None) for place in places]
            parts = [part for part in old_parts if part is not None]
            for part in parts:
                part.is_revoked = True
                part.held.clear()
        return parts


class _KafkaMessage(TakenMessage):
    def __init__(self, poller: _PollingThread, partition: _OwnedPartition, record: Any) -> None:
        self._poller = poller
        self._record = record
        self.partition = partition
        self.offset: int = record.offset()
        self.label = f"{partition.number}/{self.offset}"
        self.identity = (partition.number, self.offset)
        key = record.key()
        # A record without a key waits for nothing; those of a key belong to the assignment they came by.
        self.lane = None if key is None else (id(partition), key)
        self.owner: _KafkaConsumer | None = None

    def read(self) -> Event:
        try:
            headers = {
                name: value.decode() for name, value in self._record.headers() or [] if value is not None
            }
        except UnicodeDecodeError:
            raise UnreadableEvent("its headers are not UTF-8") from None
        return cloudevents.read(headers, self.raw, cloudevents.KAFKA)

    @property
    def raw(self) -> bytes:
        return bytes(self._record.value() or b"")

    async def acknowledge(self) -> None:
        if not self._poller.finish(self):
            raise Gone

    def let_go(self) -> None:
        assert self.owner is not None
        self.owner.let_go(self)
