"""Entries of the catalogue: middleware that says where it works, which fields it names, what it needs.

A new entry is a class and the function that users call. Most need no more than this:

    class MaxAge(Entry):
        name = "response.max_age"  # as users write it
        homes: ClassVar = {"response": ANYWHERE}  # the steps it can stand on
        docs = describe_nothing  # or a function that says what it adds to the API description

        def __init__(self, seconds: int) -> None:
            super().__init__()
            self._value = f"max-age={seconds}"
            self.mistakes += [f"{seconds} is no number of seconds"] if seconds < 0 else []

        async def __call__(self, ctx: Context, next: Next) -> None:
            ctx.add_header("Cache-Control", self._value)
            await next()

Where it says nothing of what `Entry` asks, it is like most others. An entry that names fields sets `fields`;
one that keeps things, `keeps`; one that is another middleware for each model has `make`; one that judges
writes has `checks`, and one that hides, changes or fills fields has `rules`. What only some kinds are asked
stands in `AuthEntry`, `SecretKeeper`, `ListeningEntry` and `ServerEntry`.

When the server is sealed, `place_entries` turns each registration into `Piece`s: one at the place of the
registration, or several in the steps where the work belongs, so that one registration is enough. Each piece
is made for one model and operation, with its fields looked up once. A wrong step, a field that does not exist
and a wrong argument stop the start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Union

from maniflex._callables import label_of
from maniflex._names import did_you_mean
from maniflex.db.port import Tx
from maniflex.db.write_seam import Change
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.model.registry import name_of, unknown_model
from maniflex.pipeline.exchange import App
from maniflex.pipeline.observation import Observation
from maniflex.pipeline.operation import Operation, covered
from maniflex.pipeline.registration import (
    ACTION,
    BESIDE_STEPS,
    DESCRIPTION,
    FILES,
    At,
    AuthPart,
    Middleware,
    Pipeline,
    Registration,
    nothing_serves,
)
from maniflex.pipeline.registration import ask as ask
from maniflex.pipeline.rules.checks import Check, RowCheck
from maniflex.query.query import find_field

if TYPE_CHECKING:
    from maniflex.db.store import Store
    from maniflex.db.write_seam import ChangeListener
    from maniflex.pipeline.context import Context
    from maniflex.pipeline.registration import Next, Served, Step
    from maniflex.pipeline.rules.redactions import RedactionRule
    from maniflex.pipeline.rules.transforms import Transform
    from maniflex.pipeline.runtime import Runtime

Make = Callable[[ModelMeta | None, Operation], Middleware | None]
EntryRule = Union["FieldTransform", "RedactionRule", "Filled", "SoleRight"]
ANYWHERE = (At.BEFORE, At.AFTER)
GUARDS_ANYTHING = {"auth": ANYWHERE, ACTION: ANYWHERE, FILES: ANYWHERE, DESCRIPTION: ANYWHERE}


class DeclaredAction(Protocol):
    """What an entry may know of an action."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def middleware(self) -> Sequence[Middleware]: ...


@dataclass(frozen=True, slots=True)
class Seat:
    """Where an entry was registered, and the models it acts on there."""

    step: str
    at: At
    models: tuple[ModelMeta, ...]
    operations: frozenset[Operation] | None
    is_named: bool  # the registration names its models; otherwise they are all that have the fields
    registered: Mapping[str, ModelMeta]  # all models of the server
    registration: Registration  # its own
    registrations: tuple[Registration, ...]  # of the same step, its own among them, as they run
    actions: tuple[DeclaredAction, ...]  # all actions of the server; in one of them, that one alone
    computed: Mapping[str, Sequence[str]] = field(default_factory=dict)  # names of computed fields, by model

    @property
    def is_action(self) -> bool:
        """Whether the entry stands in the middleware= of an action."""
        return self.step == ACTION

    def overlaps(self, other: Seat) -> bool:
        """Whether some request meets both."""
        is_same_model = not (self.is_named or other.is_named) or bool({*self.models} & {*other.models})
        both, own = (self.operations, other.operations), self.operations or frozenset()
        return is_same_model and (None in both or bool(own & (other.operations or frozenset())))


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an entry: middleware for one step, made for each model; None where there is nothing to do.

    Pieces of one step run in the order of their rank, then of registration; other middleware has rank 0.
    """

    step: str
    make: Make
    at: At = At.BEFORE
    rank: int = 0
    operations: frozenset[Operation] | None = None  # None: those of the registration
    wrap: Callable[[Any], Any] | None = None  # instead of middleware: gives the default step with it around


class Trait(Flag):
    """What an entry has besides, where it is not like most others."""

    VARIES_BY_CALLER = auto()  # it makes answers differ by who asks
    HIDES_SECRETS = auto()  # records may come from it without their secret fields
    SKIPS_REACHED = auto()  # it does nothing where a request to another model reaches its own
    ACTS_WITHOUT_ROUTES = auto()  # it acts on a model that no request is about, too
    APPLICATION_TABLES = auto()  # it has no part in how tables of the framework are written
    COMPUTED_FIELDS = auto()  # its fields may be computed ones


@dataclass(frozen=True, slots=True)
class Kept:
    """What an entry keeps beyond a request; its tables are made where it is registered."""

    stores: Sequence[Any] = ()  # places it keeps things in; they may bring tables of their own
    own_tables: Sequence[type[Model]] = ()
    beside_rows: bool = False  # the tables are made in the databases of its models too

    @property
    def tables(self) -> list[type[Model]]:
        """All tables that it needs."""
        return [*self.own_tables, *(table for store in self.stores for table in getattr(store, "tables", ()))]


@dataclass(frozen=True, slots=True)
class FieldTransform:
    """A field whose values an entry changes in answers."""

    model: type[Model]
    transform: Transform


@dataclass(frozen=True, slots=True)
class Filled:
    """A field of new records that an entry fills, by attribute, so that no client is asked for it."""

    model: ModelMeta
    name: str


@dataclass(frozen=True, slots=True)
class SoleRight:
    """What one entry alone may do to a model, as a sentence; two that say the same stop the start."""

    sentence: str


class Entry:
    """Ready-made middleware: a function of (ctx, next) that describes itself."""

    name: str = ""  # as users write it: "auth.jwt"
    homes: ClassVar[Mapping[str, Sequence[At]]] = {}  # steps it can stand on, the usual one first; positions
    acts_for: ClassVar[frozenset[Operation] | None] = None  # operations it does something for; None: all
    traits: ClassVar[Trait] = Trait(0)
    fields: Sequence[str] = ()  # by attribute, API or column name
    keeps: Kept = Kept()
    number: int = 0  # its place among the entries of the same label

    def __init__(self) -> None:
        self.mistakes: list[str] = []  # wrong arguments; they stop the start
        self.__name__ = self.name

    # -- its place, asked when the server is sealed

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        """The parts of the entry; by default the whole of it, where it was registered."""
        return (Piece(seat.step, self.make, seat.at),)

    def problems(self, seat: Seat) -> Iterable[str]:
        """What else stops the start, once fields and step are right."""
        return ()

    def problems_beside(self, seat: Seat, placement: Placement) -> Iterable[str]:
        """What stops the start because of the other middleware, once all of it is placed."""
        return ()

    def warnings(self, seat: Seat) -> Iterable[str]:
        """What the log says at the start."""
        return ()

    # -- its work, as middleware or as rules

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        """The middleware for requests to one model, or to an action; None where there is nothing to do."""
        return self

    async def __call__(self, ctx: Context, next: Next) -> None:
        """Act on a request, where the entry is one piece that needs to know no model."""
        await next()

    def checks(self, model: ModelMeta, operation: Operation) -> Iterable[Check]:
        """The rules it adds to such a write of a model."""
        return ()

    def rules(self, seat: Seat) -> Iterable[EntryRule]:
        """What holds for its models wherever their records are shown or made."""
        return ()

    # -- how it is described

    @property
    def label(self) -> str:
        """The name that entries of one kind share; each has a number besides, the same in every process."""
        return self.name

    @property
    def terms(self) -> str:
        """What it asks for, as the list of guards shows it behind the name."""
        return ", ".join(self.fields)

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        """What the API description says of such a route because of the entry."""
        return None


class AuthEntry(Entry):
    """An entry that has to do with who is asking."""

    part: ClassVar[AuthPart | None] = (
        None  # what it does about callers, where that is one of the usual things
    )
    replaces_auth_step: ClassVar[bool] = False  # of an action, which has no auth step then: it judges callers

    def placed_before(self, later: Sequence[Middleware]) -> Middleware:
        """The middleware for a route on which `later` runs after it."""
        return self

    def silences(self, other: Entry) -> bool:
        """Whether the other does nothing on a route that this one opens."""
        return False

    def method_docs(self, method: str, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        """What the API description says because of the entry of one HTTP method of a route."""
        return self.docs(model, operation)


class SecretKeeper(Entry):
    """An entry that signs or checks with secrets."""

    def production_problems(self, seat: Seat) -> Iterable[str]:
        """What `maniflex check --production` refuses, such as a short secret."""
        return ()

    def knows_secret(self, text: str) -> bool:
        """Whether the text is a secret of the entry; none should stand in the source."""
        return False


class ListeningEntry(Entry):
    """An entry that the write seam tells of writes to its models, whoever makes them."""

    hears_reached: ClassVar[bool] = False  # it is told of writes to the models that these reach, too
    hears_backends: ClassVar[bool] = True  # False: it writes in the transaction of the rows
    needs_rows: bool = False  # it looks at the rows, and not only at which model they are of

    def listener(self, store: Store) -> ChangeListener:
        """What the write seam of this store tells of its writes: the entry, or a follow-up in its place."""
        return self

    async def note_changes(self, changes: Sequence[Change], tx: Tx) -> None:
        """Rows were written, in this transaction, of a model that it listens to."""
        raise NotImplementedError


def acting(entries: Sequence[Entry]) -> list[Entry]:
    """Those of the entries of a route that do something there: one that opens it silences others."""
    openers = [entry for entry in entries if isinstance(entry, AuthEntry)]
    return [one for one in entries if not any(opener.silences(one) for opener in openers)]


@dataclass(frozen=True, slots=True)
class Placement:
    """A pipeline whose entries stand where they belong, and what was found on the way."""

    pipeline: Pipeline
    problems: list[str]
    warnings: list[str]
    claims: set[tuple[str, Operation]]  # of the entries placed so far
    computed: Mapping[str, Sequence[str]] = field(default_factory=dict)  # names of computed fields, by model
    rules: list[EntryRule] = field(default_factory=list)  # what the entries say of their models
    seats: list[tuple[Entry, Seat]] = field(default_factory=list)  # every entry that was placed, and where
    other_seats: list[tuple[Entry, Seat]] = field(default_factory=list)  # in actions, before the description


def place_entries(
    pipeline: Pipeline,
    models: Sequence[ModelMeta] | None,
    actions: Sequence[DeclaredAction] = (),
    computed: Mapping[str, Sequence[str]] | None = None,
) -> Placement:
    """Put the pieces of every entry into the steps; without `models` none can be judged by its fields."""
    placement = Placement(Pipeline(), [], [], set(), computed or {})
    placement.pipeline.openapi = pipeline.openapi
    for step in pipeline.steps:
        for registration in step.registrations:
            if isinstance(registration.fn, Entry):
                _place(registration, registration.fn, step, models, actions, placement)
            else:
                getattr(placement.pipeline, step.name).registrations.append(registration)
    for entry, seat in placement.seats:
        where = f"pipeline.{seat.step}: {entry.name}"
        placement.problems.extend(f"{where}: {p}" for p in entry.problems_beside(seat, placement))
    for registration in pipeline.openapi.auth.registrations:
        if isinstance(registration.fn, Entry):
            placement.problems.extend(_description_problems(registration, registration.fn))
            seat = Seat(DESCRIPTION, registration.at, (), None, False, {}, registration, (), ())
            placement.other_seats.append((registration.fn, seat))
    for registration in (*pipeline.openapi.generate.registrations, *pipeline.openapi.response.registrations):
        if isinstance(registration.fn, Entry):
            placement.problems.extend(_document_problems(registration, registration.fn))
    for action in actions if models is not None else ():
        _judge_action(action, pipeline, models or (), placement)
    placement.problems.extend(_unlocked_problems(placement.pipeline, models or ()))
    return placement


def _place(
    registration: Registration,
    entry: Entry,
    step: Step,
    models: Sequence[ModelMeta] | None,
    actions: Sequence[DeclaredAction],
    placement: Placement,
) -> None:
    where = f"pipeline.{registration.step}: {registration.name}"
    problems = [*entry.mistakes, *_step_problems(registration, entry)]
    registered_models = None if models is None else {meta.name: meta for meta in models}
    unknown = [*registration.unknown_models(registered_models)]
    placement.problems.extend(f"{where}: {problem}" for problem in unknown)
    if models is not None and not problems and (len(unknown) < len(registration.named) or not unknown):
        seat = _seat(registration, entry, step, models, actions, placement.computed)
        problems += [*_framework_problems(entry, seat), *_field_problems(entry, seat)]
        if not problems:
            rules = list(entry.rules(seat))
            problems += entry.problems(seat)
            problems += _claim_problems(rules, seat, placement.claims)
            placement.warnings.extend(f"{where}: {warning}" for warning in entry.warnings(seat))
        if not problems:
            placement.seats.append((entry, seat))
            placement.rules.extend(rules)
            for rule in rules if seat.operations is None or Operation.CREATE in seat.operations else ():
                if isinstance(rule, Filled):
                    rule.model.filled_by_entries.add(rule.name)
            for piece in entry.pieces(seat):
                target = getattr(placement.pipeline, piece.step)
                target.registrations.append(_piece_registration(registration, entry, seat, piece))
            if type(entry).checks is not Entry.checks:
                whole = Piece(registration.step, entry.make, registration.at)
                placement.pipeline.checks.append(_piece_registration(registration, entry, seat, whole))
    placement.problems.extend(f"{where}: {problem}" for problem in problems)


def unused_models(placement: Placement, served: Collection[Served]) -> Iterator[str]:
    """The models of entries no request to which they would do anything for.

    Of a registration that names models that is each of them; of one that found them by its fields, all.
    """
    for entry, seat in placement.seats:
        if Trait.ACTS_WITHOUT_ROUTES in entry.traits or not (seat.is_named or entry.fields):
            continue
        idle = [meta.name for meta in seat.models if not _acts(entry, seat, meta, served)]
        if not seat.is_named:
            idle = [" or ".join(idle)] if idle and len(idle) == len(seat.models) else []
        for name in idle:
            problem = nothing_serves(seat.operations or entry.acts_for, name)
            yield f"pipeline.{seat.step}: {seat.registration.name}: {problem}"


def _acts(entry: Entry, seat: Seat, meta: ModelMeta, served: Collection[Served]) -> bool:
    """Whether there is a request to the model that the entry was registered for and does something for."""
    operations = [operation for model, operation in served if model is meta]
    acts_for = frozenset(operations) if entry.acts_for is None else entry.acts_for
    return any(
        seat.registration.matches(meta, operation, item=True) and covered(acts_for, operation, item=True)
        for operation in operations
    )


def _seat(
    registration: Registration,
    entry: Entry,
    step: Step,
    models: Sequence[ModelMeta],
    actions: Sequence[DeclaredAction],
    computed: Mapping[str, Sequence[str]],
) -> Seat:
    if registration.models is not None:
        classes = {meta.name: meta for meta in models}
        known_names = {name_of(one) for one in registration.named if not unknown_model(one, classes)}
        acting = [meta for meta in models if meta.name in known_names]
    else:
        candidates = _own_models(models) if entry.fields else models
        acting = [m for m in candidates if all(_has_field(entry, m, name, computed) for name in entry.fields)]
    return Seat(
        registration.step,
        registration.at,
        tuple(acting),
        registration.operations,
        registration.models is not None,
        {meta.name: meta for meta in models},
        registration,
        tuple(sorted(step.registrations, key=lambda r: _ORDER[r.at])),
        tuple(actions),
        computed,
    )


_ORDER = {At.BEFORE: 0, At.REPLACE: 1, At.AFTER: 2}


def _judge_action(
    action: DeclaredAction, pipeline: Pipeline, models: Sequence[ModelMeta], placement: Placement
) -> None:
    """Ask the entries in the middleware= of an action, which see the auth step before it too."""
    own = [Registration(fn, ACTION, At.BEFORE, label_of(fn)) for fn in action.middleware]
    before = [
        r
        for r in sorted(pipeline.auth.registrations, key=lambda r: _ORDER[r.at])
        if r.matches(None, Operation.ACTION, item=False)
    ]
    by_name = {meta.name: meta for meta in models}
    for registration in own:
        entry = registration.fn
        if not isinstance(entry, Entry) or entry.mistakes or ACTION not in entry.homes:
            continue  # said by the action itself
        operations = frozenset({Operation.ACTION})
        seat = Seat(
            ACTION, At.BEFORE, (), operations, False, by_name, registration, (*before, *own), (action,)
        )
        where = f"action {action.method} {action.path}: {entry.name}"
        placement.other_seats.append((entry, seat))
        placement.problems.extend(f"{where}: {problem}" for problem in entry.problems(seat))
        placement.warnings.extend(f"{where}: {warning}" for warning in entry.warnings(seat))


def _piece_registration(registration: Registration, entry: Entry, seat: Seat, piece: Piece) -> Registration:
    return replace(
        registration,
        fn=entry,
        step=piece.step,
        at=piece.at,
        models=frozenset(meta.name for meta in seat.models) if seat.is_named or entry.fields else None,
        named=(),  # the names that it was registered with are judged already
        operations=registration.operations if piece.operations is None else piece.operations,
        rank=piece.rank,
        make=piece.make,
        wrap=piece.wrap,
    )


def _unlocked_problems(pipeline: Pipeline, models: Sequence[ModelMeta]) -> Iterator[str]:
    """Row checks of models whose database step is the application's own, where nothing would ask them."""
    replacements = [r for r in pipeline.db.registrations if r.at is At.REPLACE]
    for model in models:
        if not any(r.matches(model, Operation.UPDATE, item=True) for r in replacements):
            continue
        for r in pipeline.checks:
            checks = r.fn.checks(model, Operation.UPDATE) if isinstance(r.fn, Entry) else ()
            is_asked = r.matches(model, Operation.UPDATE, item=True)
            if is_asked and any(isinstance(check, RowCheck) for check in checks):
                where = f"pipeline.{r.step}: {r.name}"
                yield f"{where}: the db step of {model.name} is replaced, so it could not lock the row"


def _claim_problems(
    rules: Sequence[EntryRule], seat: Seat, claims: set[tuple[str, Operation]]
) -> Iterator[str]:
    """Claims that an entry placed before has for the same operation."""
    writes = [Operation(operation) for operation in sorted(Operation.WRITES)]
    operations = [o for o in writes if seat.operations is None or covered(seat.operations, o, item=True)]
    for sentence in [rule.sentence for rule in rules if isinstance(rule, SoleRight)]:
        own = {(sentence, operation) for operation in operations}
        if own & claims:
            yield f"{sentence} already, by another entry"
        claims |= own


def _step_problems(registration: Registration, entry: Entry) -> Iterator[str]:
    positions = entry.homes.get(registration.step)
    if positions is None:
        yield f"it does nothing on this step; register it on {steps_of(entry)}"
    elif registration.at not in positions:
        places = " or ".join(f"at={str(position)!r}" for position in positions)
        yield f"it does nothing at={str(registration.at)!r}; use {places}"
    operations = registration.operations
    acts_for = entry.acts_for or frozenset()
    if operations and acts_for and not any(covered(operations, one, item=True) for one in acts_for):
        yield f"it does nothing for {', '.join(sorted(operations))}; it is for {', '.join(sorted(acts_for))}"


def steps_of(entry: Entry) -> str:
    """The steps of the pipeline that it can be registered on, for a message."""
    return " or ".join(f"pipeline.{step}" for step in entry.homes if step not in BESIDE_STEPS)


def _framework_problems(entry: Entry, seat: Seat) -> Iterator[str]:
    """Tables of the framework that the registration names and the entry would do nothing for."""
    if seat.is_named and Trait.APPLICATION_TABLES in entry.traits:
        for meta in seat.models:
            if meta.is_internal:
                yield f"{meta.name} is a table of the framework, written in its own ways; it would do nothing"


def _field_problems(entry: Entry, seat: Seat) -> Iterator[str]:
    """Fields that a named model lacks; for an entry without models=, those that no model has."""
    if seat.is_named:
        for meta in seat.models:
            for name in entry.fields:
                if not _has_field(entry, meta, name, seat.computed):
                    yield f"{meta.name} has no field {name!r}{did_you_mean(name, meta.by_name)}"
        return
    models = _own_models(seat.registered.values())
    missing = [n for n in entry.fields if not any(_has_field(entry, m, n, seat.computed) for m in models)]
    names = {name for meta in models for name in meta.by_name}
    yield from (f"no model has a field {name!r}{did_you_mean(name, names)}" for name in missing)
    if entry.fields and not (missing or seat.models):
        yield f"no model has all of the fields {', '.join(map(repr, entry.fields))}"


def _own_models(models: Iterable[ModelMeta]) -> list[ModelMeta]:
    """The application's: a field of the framework's own tables may have the same name by chance."""
    return [meta for meta in models if not meta.is_internal]


def _has_field(entry: Entry, meta: ModelMeta, name: Any, computed: Mapping[str, Sequence[str]]) -> bool:
    if not isinstance(name, str):
        return False
    is_computed = Trait.COMPUTED_FIELDS in entry.traits and name in computed.get(meta.name, ())
    return is_computed or find_field(meta, name) is not None


def _description_problems(registration: Registration, entry: Entry) -> Iterator[str]:
    where = f"pipeline.openapi.auth: {registration.name}"
    yield from (f"{where}: {mistake}" for mistake in entry.mistakes)
    if DESCRIPTION not in entry.homes:
        yield f"{where}: it does nothing there; entries of auth guard the description"


def _document_problems(registration: Registration, entry: Entry) -> Iterator[str]:
    """The problems of an entry where the description is made and answered."""
    where = f"pipeline.{registration.step}: {registration.name}"
    for problem in (*entry.mistakes, *_step_problems(registration, entry)):
        yield f"{where}: {problem}"


def action_problems(entry: Entry) -> Iterator[str]:
    """The problems of an entry in the middleware= of an action."""
    yield from (f"{entry.name}: {mistake}" for mistake in entry.mistakes)
    if ACTION not in entry.homes:
        yield f"{entry.name}: it means nothing without a model; register it on the pipeline, for models"


def require_field(meta: ModelMeta, name: str) -> FieldMeta:
    """The field of that name, which was checked when the entry was placed."""
    field = find_field(meta, name)
    assert field is not None, f"{meta.name} has no field {name!r}"
    return field


# What an entry of the catalogue adds to the API description of the routes it acts on.


@dataclass(frozen=True, slots=True)
class EntryDocs:
    """The parts of OpenAPI operations that an entry is the reason for."""

    # Name → scheme. A caller needs one of those that the entries of a route name.
    security: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parameters: Sequence[Mapping[str, Any]] = ()
    refusals: Mapping[int, Sequence[str]] = field(default_factory=dict)  # status → codes
    refusal_headers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # status → headers
    answer_headers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of successes
    answers: Mapping[int, str] = field(default_factory=dict)  # further answers without a body
    page_meta: Mapping[str, Any] | None = None  # the schema of a counted page's `meta`, in its place
    body: Mapping[str, Any] | None = None  # the schema of successes, in the place of the usual envelope
    status: int | None = None  # of the success of an action, in the place of the usual ones


def describe_nothing(entry: Any, model: Any, operation: Any) -> EntryDocs | None:
    """The `docs` of an entry that gives the API description nothing to say, on purpose."""
    return None


def header_parameter(name: str, description: str, *, required: bool = False, **schema: Any) -> dict[str, Any]:
    """A request header, as a parameter of an operation; `schema` narrows its text."""
    return _parameter("header", name, description, required, schema)


def query_parameter(name: str, description: str) -> dict[str, Any]:
    """A parameter of the query string."""
    return _parameter("query", name, description, False, {})


def cookie_parameter(name: str, description: str) -> dict[str, Any]:
    """A cookie, as a parameter of an operation."""
    return _parameter("cookie", name, description, False, {})


def _parameter(
    place: str, name: str, description: str, required: bool, schema: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "description": description,
        "required": required,
        "schema": {"type": "string", **schema},
    }


def answer_header(description: str, kind: str = "string") -> dict[str, Any]:
    """A header of an answer."""
    return {"description": description, "schema": {"type": kind}}


# Of an entry that reads the body of an action itself.
BODY_REFUSALS: Mapping[int, Sequence[str]] = {400: ["BODY_READ_ERROR"], 413: ["BODY_READ_ERROR"]}
RETRY_AFTER = answer_header("In how many seconds to ask again.", "integer")


# Entries of the catalogue that act on every request of a server, on all routes and none.
#
# A `LayerEntry` goes around the whole application, an `ObserverEntry` sees each request when it is over.
# They are given to `server.use` and `server.observe`, or registered on a step, from where they are
# lifted.


class ServerEntry(Entry):
    """An entry that is registered once for the whole server."""

    homes: ClassVar = {"response": ANYWHERE}
    is_lifted: ClassVar[bool] = True  # registered on a step, it acts on the whole server all the same

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        return ()

    def problems(self, seat: Seat) -> Iterable[str]:
        if seat.is_named or seat.operations is not None:
            yield "it acts on every request; register it without models= and operations="

    def server_problems(self) -> Iterable[str]:
        """What stops the start when it is given to `server.use` or `server.observe`."""
        return ()


class LayerEntry(ServerEntry):
    """An entry that goes around the whole application."""

    def layer(self, app: App, runtime: Runtime) -> App:
        """The application with the entry around it."""
        raise NotImplementedError


class ObserverEntry(ServerEntry):
    """An entry that sees every request when it is over."""

    def observe(self, seen: Observation) -> None:
        """Take note of one request."""
        raise NotImplementedError
