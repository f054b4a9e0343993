"""The handler of each kind of message: collected while declaring, looked up while delivering."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec import MsgspecError
from pydantic import ValidationError

from maniflex._callables import is_async
from maniflex._json import decode, unreadable_because
from maniflex._threads import DaemonThreads, on_thread
from maniflex.background.declaring import (
    as_duration,
    duration_problems,
    key_id_of_option,
    key_option_problems,
    switch_problems,
)
from maniflex.background.loop import WorkTracing
from maniflex.background.outbox.message import Message
from maniflex.background.outbox.model import ClaimedMessage, Letter
from maniflex.background.payload_types import PayloadType
from maniflex.background.runs.engine import BindCaller
from maniflex.encryption.keyring import Keyring
from maniflex.encryption.sealed_json import WorkSealing
from maniflex.events.port import pause_of

EVERY_KIND = "*"
FRAMEWORK = "maniflex."  # what kinds of the framework begin with; a `*` handler takes none of them
TIMEOUT = timedelta(seconds=60)
MOST_THREADS = 128  # more than are put aside, so that hung handlers leave some to the others

# Its own: handlers that hang must not keep the steps of runs from a thread.
_threads = DaemonThreads(MOST_THREADS, "maniflex-outbox")


class UnreadablePayload(Exception):
    """The payload is not what the handler takes, and never will be; `broken` when it is not even JSON."""

    def __init__(self, reason: str, *, broken: bool) -> None:
        self.broken = broken
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class MessageHandler:
    """One function for one kind, or for `*`."""

    kind: str
    fn: Callable[..., Any]
    payload: PayloadType | None
    is_async: bool
    scoped: bool  # scope rules bind it by the caller of the message
    timeout: timedelta  # after which a message counts as failed; a plain function cannot be stopped
    max_attempts: int | None = None  # None, as without a pause of its own: as the relay has it
    backoff: Callable[[int], timedelta] | None = None  # the pause behind the n-th failed attempt
    encrypted: str | None = None  # the key id under which its messages are stored
    forgets_payload: bool = False  # a delivered message keeps no payload
    has_plain_errors: bool = False  # they tell nothing of the payload, so they are stored as they are
    # What is written with the death of a message, for its reason; the message counts as delivered then.
    letter: Callable[[ClaimedMessage, str], Letter | None] | None = None

    @classmethod
    def of(
        cls,
        kind: str,
        fn: Callable[..., Any],
        payload: Any = None,
        timeout: timedelta = TIMEOUT,
        scoped: bool = False,
        **options: Any,
    ) -> MessageHandler:
        payload_type = None if payload is None else PayloadType(payload)
        return cls(kind, fn, payload_type, is_async(fn), scoped, timeout, **options)

    def read(self, stored: str | bytes) -> Any:
        """The payload as the function takes it."""
        try:
            value = decode(stored)
        except (MsgspecError, ValueError, RecursionError) as error:
            why = unreadable_because(stored, error)
            raise UnreadablePayload(f"the payload is not JSON: {why}", broken=True) from error
        if self.payload is None:
            return value
        try:
            return self.payload.read(stored)
        except ValidationError as error:
            errors = error.errors(include_url=False, include_input=False, include_context=False)
            places = [".".join(map(str, e["loc"])) + f": {e['msg']}" for e in errors[:5]]
            raise UnreadablePayload(f"the payload does not fit: {'; '.join(places)}", broken=False) from error

    def __call__(self, *arguments: Any) -> Coroutine[Any, Any, object]:
        """Run it, a plain function on a thread."""
        if not self.is_async:
            return self._call_on_thread(*arguments)
        call: Coroutine[Any, Any, object] = self.fn(*arguments)
        return call

    async def _call_on_thread(self, *arguments: Any) -> None:
        outcome = await on_thread(partial(self.fn, *arguments), _threads)
        if inspect.isawaitable(outcome):
            await outcome


def readable(stored: str | bytes) -> Any:
    """The payload, or None when it cannot be read."""
    try:
        return decode(stored)
    except (MsgspecError, ValueError, RecursionError):
        return None


class MessageHandlers:
    """The handlers of one application."""

    def __init__(self) -> None:
        self._by_kind: dict[str, MessageHandler] = {}
        self._problems: list[str] = []
        self.sink: MessageHandler | None = None
        self.bind_caller: BindCaller = nullcontext  # a block that scope rules bind
        self.tracing: WorkTracing | None = None
        self.sealing = WorkSealing(Keyring())  # until the server is sealed

    def __bool__(self) -> bool:
        return bool(self._by_kind)

    def __iter__(self) -> Iterator[MessageHandler]:
        return iter(self._by_kind.values())

    def add(
        self,
        kind: Any,
        fn: Callable[..., Any],
        payload: Any,
        timeout: Any = TIMEOUT,
        scoped: Any = False,
        max_attempts: Any = None,
        backoff: Any = None,
        encrypted: Any = None,
    ) -> None:
        """A handler of the application, with the mistakes in its options."""
        where = f"outbox handler {kind!r}"
        if not isinstance(kind, str) or not kind:
            self._problems.append(f"{where}: a kind is a text such as 'order.placed', or '*' for all")
        elif kind in self._by_kind:
            self._problems.append(f"{where}: there is a handler for it already")
        elif not _takes(fn, 1):
            self._problems.append(f"{where}: it is called with (message), which it does not take")
        elif problems := [
            *duration_problems(timeout=timeout),
            *switch_problems(scoped=scoped),
            *_retry_problems(max_attempts, backoff),
            *key_option_problems(encrypted),
        ]:
            self._problems += [f"{where}: {problem}" for problem in problems]
        else:
            duration = as_duration(timeout, "timeout")
            pause = None if backoff is None else pause_of(backoff)
            self.set_handler(
                MessageHandler.of(
                    kind,
                    fn,
                    payload,
                    duration,
                    scoped,
                    max_attempts=max_attempts,
                    backoff=pause,
                    encrypted=key_id_of_option(encrypted),
                )
            )

    def set_handler(self, handler: MessageHandler) -> None:
        """Take the handler of a kind, in place of the one before."""
        self._by_kind[handler.kind] = handler

    def set_sink(self, fn: Callable[..., Any]) -> None:
        if self.sink is not None:
            self._problems.append("outbox dead_letter: there is one already")
        elif not _takes(fn, 2):
            self._problems.append(
                "outbox dead_letter: it is called with (message, reason), which it does not take"
            )
        else:
            self.sink = MessageHandler.of("dead_letter", fn)

    @property
    def least_timeout(self) -> timedelta:
        """The shortest timeout of all handlers."""
        return min([TIMEOUT, *(handler.timeout for handler in self._by_kind.values())])

    def problems(self) -> list[str]:
        return list(self._problems)

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """The kinds that have a handler here; None for every kind."""
        return None if EVERY_KIND in self._by_kind else tuple(self._by_kind)

    @property
    def named_kinds(self) -> frozenset[str]:
        """The kinds that have a handler of their own here."""
        return frozenset(self._by_kind)

    def of(self, kind: str) -> MessageHandler | None:
        """The handler of a kind; messages of the framework go to a handler of their own alone."""
        own = self._by_kind.get(kind)
        return own if own is not None or kind.startswith(FRAMEWORK) else self._by_kind.get(EVERY_KIND)


def _retry_problems(max_attempts: Any, backoff: Any) -> Iterator[str]:
    if max_attempts is not None and (type(max_attempts) is not int or max_attempts < 1):
        yield f"max_attempts={max_attempts!r} is no whole number from 1 on"
    if backoff is not None and not callable(backoff):
        yield f"backoff={backoff!r} is no function of the number of failed attempts"


def _takes(fn: Any, count: int) -> bool:
    if not callable(fn):
        return False
    try:
        inspect.signature(fn).bind(*(Message,) * count)
    except TypeError:
        return False
    except ValueError:  # a builtin that does not say
        return True
    return True
