"""What the steps of one request hand each other; `Context` is the face of it that applications see.

A base class, because an object of its own beside the context makes a read by id 1.4 % dearer. Defaults
stand on the class, so that a step pays only for what it sets; the few that every request looks at are set by
`Context.__init__`, because to find them on the class makes a read by id 1.6 % dearer (instructions counted).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from maniflex.db.budget import Budget
from maniflex.db.includes import Related
from maniflex.db.port import AfterCommit, Row
from maniflex.query.query import Query, Scope
from maniflex.sql.listing import Listing

if TYPE_CHECKING:
    from maniflex.db.write_seam import Guard
    from maniflex.pipeline.body import BodyPlace
    from maniflex.pipeline.chain import StepTimes
    from maniflex.pipeline.runtime import Runtime
    from maniflex.pipeline.watch import WatchedRequest

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[AsgiScope, Receive, Send], Awaitable[None]]
IN_PROCESS = "maniflex.in_process"  # in the scope of a request that the application makes itself
LANGUAGE = "maniflex.language"  # in the scope of a request of the panel: what its person reads records in
OPERATES = "maniflex.operates"  # in the scope of a request of the panel: its person looks after durable work
LOOKS = "looks"  # the value of `OPERATES` for a person who sees durable work there and operates nothing
SOCKET = "maniflex.socket"  # in the scope of a WebSocket: the protocol of its connection, where it is ours
OWN_ORIGINS = "maniflex.own_origins"  # in the scope of a stream: it says itself which pages may read it
OBSERVED = "maniflex.observed"  # in the scope of a request: where its route is noted for observers


class Exchange:
    """One request and its answer: the fields that only the steps use."""

    runtime: Runtime
    scope: AsgiScope
    receive: Receive
    params: Mapping[str, str] = {}  # of the path

    # Between the server and the steps.
    body_asked: bool = False  # the client was told to send its body, if it waited for that
    max_body_size: int | None = None  # of this request alone; None: as the settings say
    body_complete: bool = False  # nothing of the body is still to come
    # Middleware of the application that was reached last, for the message when nothing answers.
    entered: str = ""
    entered_response: str = ""
    replaced_by: str = ""  # that stands in the place of the db step
    raw_body: bytes | None = None
    is_type_unchecked: bool = False  # code has read the body before its type was looked at
    is_uploading: bool = False  # files arrive or are stored, for which no time is set but that they move
    form: Any = None  # of a request that brought a form: its files, and what was stored of them
    asked_file: Any = None  # of a request for a single file: what was found of it before the auth step
    place: BodyPlace | None = None  # of a large body
    watched: WatchedRequest | None = None  # once it takes some time
    settled: bool = False  # its answer is decided, so nothing ends it any more
    action: Any = None
    route_path: str = ""  # of the endpoint, with its prefix, as it was declared; known once it answers
    began: float = 0.0  # by `perf_counter`
    step_times: StepTimes | None = None  # where `trace.timings` is on

    # From the steps that read the request to those that serve it.
    client_listing: Listing | None = None  # of the query string, as the client wrote it
    _query: Query | None = None  # as it stands; `ctx.query` replaces it
    _body: Any = None
    unparsed: Callable[[Any], Any] | None = None  # parses a body that is only parsed when code looks at it
    _record: Any = None  # of a create
    _new_id: str = ""  # of the record a create makes
    changes: dict[str, Any] | None = None  # of an update
    sent_names: tuple[str, ...] | None = None  # keys of a body from which some were dropped
    extra_names: frozenset[str] = frozenset()  # keys of the body that are no fields and yet expected
    nested: Any = None  # of a body with nested records: what they are
    nested_place: Any = None  # of a nested record: where in the body of its request it stands
    aggregation: Any = None
    allowance: Any = None  # of a limited request: the bucket that has the least left
    key_claim: Any = None  # of a request with an idempotency key: its claim
    write_guard: Guard | None = None  # of a create: a statement that goes with the row, or neither does
    policy_views: dict[str, Any] | None = None  # by model: who asks, where its own middleware says so
    reach: Any = None  # the step that runs the middleware of reached models, on routes that have one

    as_of: Any = None  # of a request for the past: what it asks for
    past: Any = None  # of such a request and of one for a history: what was found

    rule_values: dict[Any, Any] | None = None  # what scope rules asked callbacks for
    redaction_answers: dict[int, tuple[Any, bool]] | None = None  # what functions of redaction said, of whom
    bound_action: bool = False  # by a scope rule among its own middleware

    # From the database step to the answer.
    listing: Listing | None = None  # that `rows` were read by
    row: Row | None = None
    rows: Sequence[Row] | None = None
    total: int = 0
    more: bool = False  # rows, behind those of a page that is not counted
    related: Sequence[Related] = ()
    page_ends: tuple[Row, Row] | None = None  # of a page with policies: the rows a walk goes on from
    budget: Budget | None = None  # of the rows that were read
    tells_id_alone: bool = False  # of a write: its caller may not read the record that it made
    deleted: bool = False  # a delete leaves nothing else behind
    shown_models: tuple[str, ...] = ()  # with fields to redact, whose records the answer of an action shows
    early_response: Any = None  # the answer that the response step gave before the transaction ended
    keeps_answer_secret: bool = False  # the answer shows a secret once, so no store may keep it
    exports: bool = False  # the rows are read when they are sent
    exported_rows: int | None = None  # of an export that somebody counts: the rows that were read so far
    _result: Any = None
    _after: list[AfterCommit] | None = None

    @property
    def in_process(self) -> bool:
        """Whether `server.execute`, `server.call` or the panel made the request; no client can say so."""
        return IN_PROCESS in self.scope

    @property
    def forced(self) -> Scope:
        """The conditions `ctx.query.force` has bound this request to."""
        return () if self._query is None else self._query.forced
