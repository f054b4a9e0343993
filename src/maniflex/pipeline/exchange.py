"""What the steps of one request hand each other; `Context` is the face of it that applications see.

A base class with its defaults on the class: a context costs as little to make as if none of this were
there, and a step pays only for what it sets. An object of its own beside the context cost every request
an allocation and every step another attribute to look up (measured: 1.5 to 2 % of a read by id).
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
    from maniflex.pipeline.body_room import BodyPlace
    from maniflex.pipeline.runtime import Runtime
    from maniflex.pipeline.watch import WatchedRequest

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Exchange:
    """One request and its answer, as far as they concern the steps alone."""

    runtime: Runtime
    scope: AsgiScope
    receive: Receive
    params: Mapping[str, str] = {}  # of the path

    # Between the server and the steps.
    body_asked: bool = False  # the client was told to send its body, if it waited for that
    body_complete: bool = False  # nothing of the body is still to come
    raw_body: bytes | None = None
    place: BodyPlace | None = None  # of a large body
    watched: WatchedRequest | None = None  # once it takes some time
    settled: bool = False  # its answer is decided, so nothing ends it any more
    action: Any = None

    # From the steps that read the request to those that serve it.
    asked: Listing | None = None  # of the query string, as the client wrote it
    _query: Query | None = None  # as it stands; `ctx.query` replaces it
    _body: Any = None
    _record: Any = None  # of a create
    _new_id: str = ""  # of the record a create makes
    changes: dict[str, Any] | None = None  # of an update
    aggregation: Any = None
    allowance: Any = None  # of a limited request: the bucket that has the least left
    key_claim: Any = None  # of a request with an idempotency key: its claim
    reach: Any = None  # the step that runs the middleware of reached models, on routes that have one

    # From the database step to the answer.
    listing: Listing | None = None  # that `rows` were read by
    row: Row | None = None
    rows: Sequence[Row] | None = None
    total: int = 0
    more: bool = False  # rows, behind those of a page that is not counted
    related: Sequence[Related] = ()
    budget: Budget | None = None  # of the rows that were read
    deleted: bool = False  # a delete leaves nothing else behind
    early_response: Any = None  # the answer that the response step gave before the transaction ended
    keeps_answer_secret: bool = False  # the answer shows a secret once, so no store may keep it
    exports: bool = False  # the rows are read when they are sent
    _result: Any = None
    _after: list[AfterCommit] | None = None

    @property
    def forced(self) -> Scope:
        """The conditions `ctx.query.force` has bound this request to."""
        return () if self._query is None else self._query.forced
