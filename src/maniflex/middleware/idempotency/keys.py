"""`idempotency.keys`: one registration, two parts.

The first part stands where the body has been read. It claims the key by a statement of its own, so that of
any number of twins one goes on, and answers the others. The second goes around the database step: there
the rows, the answer and the settled key are committed together, or not at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from maniflex.middleware.idempotency.claims import NAME, OUTSIDE, KeyClaimer, KeyOptions, option_mistakes
from maniflex.middleware.idempotency.request import (
    KeyedAction,
    KeyedBatch,
    KeyedRequest,
    KeyedWrite,
    KeyParts,
    Surround,
)
from maniflex.middleware.stores.idempotency import SqlIdempotency
from maniflex.middleware.stores.port import Duration, IdempotencyStore, seconds_of
from maniflex.model.field import size_in_bytes
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry import (
    ANYWHERE,
    BODY_REFUSALS,
    RETRY_AFTER,
    Entry,
    EntryDocs,
    Kept,
    Piece,
    Placement,
    Seat,
    answer_header,
    header_parameter,
)
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.registration import ACTION, FILES, At, Middleware, Registration

_OF_FILES = frozenset({Operation.UPLOAD_FILE, Operation.DELETE_FILE})
_ASKED_FIRST = {"auth", "deserialize"}  # homes of what refuses a request, or says in whose name it is
_LAST, _OUTERMOST = 1000, -1000  # ranks: after limits and scopes; around everything of the database step


class Keys(Entry):
    """Requests with an `Idempotency-Key` have their effect once."""

    name = NAME
    homes: ClassVar = {"deserialize": (At.AFTER,), ACTION: ANYWHERE, FILES: ANYWHERE}
    acts_for = frozenset({Operation.CREATE, Operation.UPDATE, Operation.DELETE})

    def __init__(self, store: Any, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.keeps = Kept((store,), beside_rows=True)
        self.mistakes += option_mistakes(arguments)
        if not self.mistakes:
            self.options = _read_options(arguments)
            settles = getattr(store, "settles_in_transaction", False)
            claimer = KeyClaimer(self.options)
            self.forget_answers = claimer.forget_answers
            self._parts = KeyParts(self.options, claimer, store, settles)

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        """The claim where the body has been read; the transaction as late as it can begin."""
        yield Piece("deserialize", self._make_claim, At.AFTER, _LAST)
        if self.options.in_transaction and self._parts.settles_in_transaction:
            yield Piece("db", self._make_write, At.BEFORE, _OUTERMOST)

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        """The middleware for an action or a route of files, which claims the key and settles it."""
        if self.mistakes or operation is Operation.READ_FILE:
            return None
        if operation in _OF_FILES:
            return KeyedRequest(self._parts, str(operation), is_of_files=True)
        return KeyedAction(self._parts)

    def _make_claim(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        if model is None or operation not in self.acts_for:
            return None
        return KeyedRequest(self._parts, f"{model.table} {operation}")

    def _make_write(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return KeyedWrite() if model is not None and operation in self.acts_for else None

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        is_action = model is None and operation is Operation.ACTION
        if not is_action and operation not in self.acts_for | _OF_FILES:
            return None
        return key_docs(self.options, reads_body=is_action)

    def problems(self, seat: Seat) -> Iterable[str]:
        others = [r for r in seat.registrations if r is not seat.registration and isinstance(r.fn, Keys)]
        if any(_overlap(r, seat.registration) for r in others):
            yield "a request would pass it twice; register it once for each route"
        if not seat.is_action:
            return
        if seat.actions[0].method == "GET":
            yield "a GET changes nothing, so there is nothing to do twice"
        place = seat.registrations.index(seat.registration)
        if any(_opens_transaction(r) for r in seat.registrations[:place]):
            yield f"{OUTSIDE}; put it before with_transaction()"
        for registration in seat.registrations[place + 1 :]:
            entry = registration.fn
            if isinstance(entry, Entry) and not isinstance(entry, Keys) and entry.homes.keys() & _ASKED_FIRST:
                yield f"a replay would pass {entry.name}, which stands behind it; put it behind {entry.name}"

    def problems_beside(self, seat: Seat, placement: Placement) -> Iterable[str]:
        steps = placement.pipeline.auth, placement.pipeline.deserialize
        before = [r for step in steps for r in step.registrations if _opens_transaction(r)]
        if any(_overlap(r, seat.registration) for r in before):
            yield f"{OUTSIDE}; register with_transaction() on the service step"


class BatchKeys(Keys):
    """The keys of batches, whose transaction and the database of that only the batch can tell."""

    def __init__(self, surround: Surround) -> None:
        super().__init__(store := SqlIdempotency(), _arguments(store=store))
        self._surround = surround

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        return KeyedBatch(self._parts, self._surround)


def _arguments(**changed: Any) -> dict[str, Any]:
    """The arguments of `keys`, as they are unless something else is said."""
    usual = {name: parameter.default for name, parameter in inspect.signature(keys).parameters.items()}
    return {**usual, **changed}


def _read_options(arguments: dict[str, Any]) -> KeyOptions:
    return KeyOptions(
        ttl=seconds_of(arguments["ttl"]),
        wait=seconds_of(arguments["wait"]),
        lease=seconds_of(arguments["lease"]),
        max_answer=size_in_bytes(arguments["max_answer"]) or 0,
        is_required=arguments["required"],
        runs_on_error=arguments["on_error"] == "run",
        in_transaction=arguments["transaction"],
        caller=arguments["caller"],
    )


def _opens_transaction(registration: Registration) -> bool:
    return getattr(registration.fn, "opens_transaction", False)


def _overlap(one: Registration, other: Registration) -> bool:
    """Whether some request passes both."""
    models = one.models is None or other.models is None or one.models & other.models
    sets = [Keys.acts_for if r.operations is None else r.operations for r in (one, other)]
    return bool(models and sets[0] & sets[1])


def keys(
    *,
    ttl: Duration = 86400,
    required: bool = False,
    caller: Callable[[Context], Any] | None = None,
    wait: Duration = 5,
    lease: Duration = 30,
    store: IdempotencyStore | None = None,
    transaction: bool = True,
    max_answer: int | str = "1MB",
    on_error: str = "refuse",
) -> Keys:
    """Let requests that carry an `Idempotency-Key` have their effect once, however often they are sent.

    The first answer below 400 is kept for `ttl`, in the transaction of the write, and given again. A twin
    waits up to `wait` for it. A request that dies leaves its key free after `lease`.
    """
    arguments = {
        "ttl": ttl,
        "required": required,
        "caller": caller,
        "wait": wait,
        "lease": lease,
        "store": SqlIdempotency() if store is None else store,
        "transaction": transaction,
        "max_answer": max_answer,
        "on_error": on_error,
    }
    return Keys(arguments["store"], arguments)


# What the API description says of a route that takes an `Idempotency-Key`.


_FORM = {"minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}


def key_docs(options: KeyOptions, *, reads_body: bool) -> EntryDocs:
    """The header, the refusals and the mark of an answer that was given before."""
    body = BODY_REFUSALS if reads_body else {}
    needed = ["IDEMPOTENCY_KEY_REQUIRED"] if options.is_required else []
    refusals = {
        **body,
        400: [*body.get(400, ()), "IDEMPOTENCY_KEY_INVALID", *needed],
        409: ["IDEMPOTENCY_IN_PROGRESS", "IDEMPOTENCY_NOT_REPLAYABLE"],
        422: ["IDEMPOTENCY_KEY_REUSED"],
        503: ["IDEMPOTENCY_UNAVAILABLE"],
    }
    if options.runs_on_error:
        del refusals[503]
    text = "Names the request, so that it has its effect once however often it is sent."
    replayed = answer_header("`true` when an earlier request with this key was answered so.")
    return EntryDocs(
        parameters=[header_parameter("Idempotency-Key", text, required=options.is_required, **_FORM)],
        refusals=refusals,
        refusal_headers={409: {"Retry-After": RETRY_AFTER}},
        answer_headers={"Idempotent-Replayed": replayed},
    )
