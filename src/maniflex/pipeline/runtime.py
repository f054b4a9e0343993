"""What a sealed server hands to its pipeline: stores, serializers, settings and the tasks it started."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from maniflex._client_address import TrustedProxies
from maniflex._clock import Clock, nanoseconds_by
from maniflex._fence import Fence
from maniflex._locales import LocaleView
from maniflex._logging import SlowLog, guard_logger, log_panic
from maniflex._messages import Messages
from maniflex._names import did_you_mean
from maniflex.config import Config
from maniflex.db.current import detached_context
from maniflex.db.port import Adapter
from maniflex.db.statements import StatementDurations
from maniflex.db.store import Store
from maniflex.encryption.keyring import Keyring
from maniflex.errors import DeclarationError, NoStorage, NotFound, RequestError, Unavailable
from maniflex.model.base import Model
from maniflex.model.texts import localized_fields
from maniflex.pipeline.body import BodyRoom
from maniflex.pipeline.observation import RequestNumbers, Tracing
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.serializer import Serializer, encoder, simplifier
from maniflex.pipeline.threads import Offload, Threads, refuse_when_over
from maniflex.pipeline.watch import RequestWatch
from maniflex.query.parse import locale_parameter
from maniflex.query.query import Scope

if TYPE_CHECKING:
    from maniflex.pipeline.rules.model_rules import ServerRules

LARGE_READS = 1  # reads of many megabytes at once; each takes several times its size

_MOST_VIEWS = 512

Work = Callable[[], Awaitable[object]] | Awaitable[object]


class Runtime:
    """One sealed application."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        adapter: Adapter,
        stores: Mapping[type[Model], Store],
        logger: logging.Logger,
        rules: ServerRules,
        file_desk: Any = None,
        background_logger: logging.Logger | None = None,
        tracing: Tracing | None = None,
        keys: Keyring | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.nanoseconds = nanoseconds_by(clock)  # since 1970
        self.adapter = adapter
        self.stores = stores
        self.logger = logger
        self.rules = rules
        self.file_desk = file_desk  # where the server has to do with files
        self.panic_logger = config.panic_logger or logger
        self.models = {cls: store.meta for cls, store in stores.items()}
        self._views: dict[tuple[str | bytes | None, str | None], LocaleView] = {}
        view = self.view_of(None, None)
        self.serializers = {cls: Serializer(store.meta, view=view) for cls, store in stores.items()}
        self.has_texts = any(localized_fields(store.meta) for store in stores.values())
        self.simplify = simplifier(self.serializers)
        self.encode = encoder(self.simplify)
        self.tracing = tracing
        self.keys = keys or Keyring()
        self.background_logger = background_logger or guard_logger(logger)
        self.tasks = Tasks(self.background_logger)
        self.threads = Threads()
        self.offload = Offload()
        self.bodies = BodyRoom(config.max_body_size)
        self.large_reads = asyncio.Semaphore(LARGE_READS)
        self.outages = OutageLog()
        self.messages = None if config.messages is None else Messages(config.messages)
        self.file_routes: dict[type[Model], FileRoutes] = {}  # of models with file fields
        self.nested: dict[type[Model], NestedRoutes] = {}  # of models whose bodies hold other records
        self.rollups: Any = None  # the totals that follow their rows, where there are any
        self.caller_checks: list[Callable[..., Any]] = []  # what every authenticator asks; likewise
        self.request_ids = RequestIds()
        self.request_numbers = RequestNumbers() if config.metrics_enabled else None
        self.proxies = TrustedProxies(config.trusted_proxies)
        slow_after = config.slow_after.total_seconds()
        self.watch = RequestWatch(config.query_timeout.total_seconds(), slow_after, SlowLog(logger))
        self.statement_durations: dict[str, StatementDurations] = {}  # by database; filled with metrics on
        self.server: Any = None  # the `Server` that it was sealed from, which stands far above
        self.path_without_storage = ""  # of files, where there is no storage and nothing else has the path
        self._by_name = {store.meta.name: store for store in stores.values()}

    def no_such_path(self, path: str) -> RequestError:
        """The refusal of a path that has no route: below that of files it says what is missing."""
        files = self.path_without_storage
        if files and (path == files or path.startswith(f"{files}/")):
            return NoStorage()
        return NotFound("no such path")

    def view_of(self, parameter: str | None, accept_language: str | None) -> LocaleView:
        """The language that a request asks for; the same few come again and again."""
        key = (parameter, accept_language)
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            view = self._views[key] = self.config.locale.view(parameter, accept_language)
        return view

    def view_asked_by(self, query_string: bytes, accept_language: str | None) -> LocaleView:
        """The language that a query string and a header ask for; `InvalidQuery` for what is none."""
        if b"locale" not in query_string and b"%" not in query_string:
            return self.view_of(None, accept_language)
        key = (query_string, accept_language)
        view = self._views.get(key)
        if view is None:
            view = self.view_of(locale_parameter(query_string), accept_language)
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            self._views[key] = view
        return view

    def find_store(self, name: str) -> Store | None:
        """The store of a model by its name; None when no such model is registered."""
        return self._by_name.get(name)

    def store(self, model: type[Model] | str) -> Store:
        """The store of a model, by class or by name."""
        store = self._by_name.get(model) if isinstance(model, str) else self.stores.get(model)
        if store is None:
            name = model if isinstance(model, str) else model.__name__
            raise DeclarationError(
                f"no model named {name!r} is registered{did_you_mean(name, self._by_name)}"
            )
        return store

    def adapter_of(self, model: type[Model] | str) -> Adapter:
        """The database that the rows of a model are in."""
        return self.store(model).adapter


class Tasks:
    """Work that outlives the request which started it; shutdown waits for it."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._running: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        """Remember the loop, for work that is started from a thread."""
        self._loop = asyncio.get_running_loop()

    def start(self, work: Work, name: str = "background") -> None:
        if self._loop is not None and asyncio._get_running_loop() is not self._loop:
            refuse_when_over()
            self._loop.call_soon_threadsafe(self._start, work, name)
        else:
            self._start(work, name)

    def _start(self, work: Work, name: str) -> None:
        task = asyncio.create_task(self._run_and_log(work, name), name=name, context=detached_context())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run_and_log(self, work: Work, name: str) -> None:
        fence = Fence()
        try:
            outcome: Any = work() if callable(work) else work
            if inspect.isawaitable(outcome):
                await outcome
        except BaseException as error:
            fence.absorb(error)
            log_panic(self._logger, f"{name} work failed", error)

    async def drain(self, seconds: float) -> int:
        """Wait for the running tasks, then cancel the rest; returns how many were cancelled."""
        if not self._running:
            return 0
        _, late = await asyncio.wait(self._running, timeout=max(seconds, 0))
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1)
        return len(late)


# Log a database that is away or full once a second, not once for each request it fails.


PAUSE = 1.0  # seconds


def is_outage(error: RequestError) -> bool:
    """Whether the error says no more than that the database is away, which it will say again."""
    return isinstance(error, Unavailable) or isinstance(error.__cause__, Unavailable)


class OutageLog:
    """The outages of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._again_at = 0.0
        self._unsaid = 0

    def note(self, error: RequestError, logger: Any) -> None:
        """Write one line with the causes, unless one was written just now."""
        now = self._clock()
        if now < self._again_at:
            self._unsaid += 1
            return
        others = f" (and {self._unsaid} more since the last such line)" if self._unsaid else ""
        self._again_at, self._unsaid = now + PAUSE, 0
        logger.error("%s %s: %s%s", error.status, error.code, _with_causes(error), others)


def _with_causes(error: BaseException) -> str:
    texts = [str(error)]
    while (cause := error.__cause__) is not None:
        texts.append(repr(cause))
        error = cause
    return ": ".join(texts)


# The id of a request: the one the client sent, or a new one; and the trace it is a part of.


MOST_TRACEPARENT = 200
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


# Version, trace, span and flags; zeros are no id.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_LENGTH = 55  # of all of them; a later version may have more behind it


def read_traceparent(text: str) -> str:
    """The header `traceparent` as W3C defines it; empty for anything else."""
    text = text.strip()
    if len(text) > MOST_TRACEPARENT or not _TRACEPARENT.match(text):
        return ""
    rest = text[_LENGTH:]
    return text if not rest or (rest[0] == "-" and text[:2] != "00") else ""


class RequestIds:
    """Gives every request its id."""

    def __init__(self) -> None:
        # An id must be unique and cheap, not secret: a random start and a counter are both.
        self._prefix = secrets.token_hex(8).encode()
        self._count = itertools.count(1)

    def identify(self, scope: Mapping[str, Any]) -> tuple[bytes, str]:
        """The id of the request, and the `traceparent` it came with; an unreadable one is as good as none."""
        request_id, traceparent = b"", ""
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                if _REQUEST_ID.fullmatch(value):
                    request_id = value
            elif name == b"traceparent":
                traceparent = read_traceparent(value.decode("latin-1"))
        return request_id or b"%s-%x" % (self._prefix, next(self._count)), traceparent


# What a feature adds to the writing routes of models with file fields: forms, and the files they bring.


Step = Callable[[Any], Awaitable[None] | None]  # of the context
Touchable = Callable[[Any], Scope]


class FileRoutes(Protocol):
    """The steps of one model's creates and updates that have to do with files."""

    @property
    def takes_forms(self) -> bool:
        """Whether there is a storage, and a field that a client may upload to."""
        ...

    def read_body(self, read_json: Step, operation: Operation, touchable: Touchable) -> Step:
        """The deserialize step: a form, or JSON as `read_json` has it."""
        ...

    def settle_files(self, operation: Operation, touchable: Touchable, *, restores: bool = False) -> Step:
        """The end of the validate step: the keys that are named are checked, and files are stored.

        What a request `restores`, the record has named before.
        """
        ...

    async def clean_up(self, ctx: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        """Middleware around the whole request: files that a failed request stored are given up."""
        ...


class NestedRoutes(Protocol):
    """The steps of one model's creates and updates whose bodies may hold records of other models."""

    def compose(self, routes: Any) -> None:
        """Make the chains of what may be nested, once all else is made."""
        ...

    def read(self, ctx: Any) -> None:
        """The end of the deserialize step: what is nested is taken out of the body."""
        ...

    def around_validate(self, validate: Step) -> Step:
        """The validate step, which also judges what is nested."""
        ...

    def around_write(self, write: Step) -> Step:
        """The database step, which also writes what is nested, in one transaction."""
        ...
