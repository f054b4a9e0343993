"""Entries of the catalogue: middleware that says where it works, which fields it names, what it needs.

An `Entry` is registered like any middleware. When the server is sealed, `place_entries` turns its
registration into `Piece`s: one at the place of the registration, or several in the steps where the work
belongs, so that one registration is enough. Each piece is made for one model and operation, with its
fields looked up once. A wrong step, a field that does not exist and a wrong argument stop the start.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from maniflex._names import did_you_mean
from maniflex.errors import CallbackFailed, RequestError
from maniflex.model.base import Model
from maniflex.model.meta import FieldMeta, ModelMeta
from maniflex.pipeline.context import Context
from maniflex.pipeline.entry_docs import EntryDocs
from maniflex.pipeline.operation import Operation, covered
from maniflex.pipeline.registration import At, Middleware, Next, Pipeline, Registration
from maniflex.pipeline.transforms import Transform
from maniflex.query.query import find_field

Make = Callable[[ModelMeta | None, Operation], Middleware | None]
ANYWHERE = (At.BEFORE, At.AFTER)


@dataclass(frozen=True, slots=True)
class Seat:
    """Where an entry was registered, and the models it acts on there."""

    step: str
    at: At
    models: tuple[ModelMeta, ...]
    operations: frozenset[Operation] | None
    is_named: bool  # the registration names its models; otherwise they are all that have the fields
    registered: Mapping[str, ModelMeta]  # all models of the server

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


class Entry:
    """Ready-made middleware: a function of (ctx, next) that describes itself."""

    name: str = ""  # as users write it: "auth.jwt"
    homes: ClassVar[Mapping[str, Sequence[At]]] = {}  # steps it can stand on, the usual one first; positions
    in_actions: ClassVar[bool] = False  # it can stand in the middleware= of an action
    in_description: ClassVar[bool] = False  # it can guard the API description
    acts_for: ClassVar[frozenset[Operation] | None] = None  # operations it does something for; None: all
    is_lifted: ClassVar[bool] = False  # registered on a step, it acts on the whole server all the same
    varies_by_caller: ClassVar[bool] = False  # it makes answers differ by who asks
    fields: Sequence[str] = ()  # by attribute, API or column name
    tables: Sequence[type[Model]] = ()  # tables of its own, made where it is registered

    def __init__(self) -> None:
        self.mistakes: list[str] = []  # wrong arguments; they stop the start
        self.__name__ = self.name

    async def __call__(self, ctx: Context, next: Next) -> None:
        """Act on a request, where the entry is one piece that needs to know no model."""
        await next()

    def make(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        """The middleware for requests to one model, or to an action; None where there is nothing to do."""
        return self

    def pieces(self, seat: Seat) -> Iterable[Piece]:
        """The parts of the entry; by default the whole of it, where it was registered."""
        return (Piece(seat.step, self.make, seat.at),)

    def problems(self, seat: Seat) -> Iterable[str]:
        """What else stops the start, once fields and step are right."""
        return ()

    def problems_beside(self, seat: Seat, placement: Placement) -> Iterable[str]:
        """What stops the start because of the other middleware, once all of it is placed."""
        return ()

    def production_problems(self, seat: Seat) -> Iterable[str]:
        """What `maniflex check --production` refuses, such as a short secret."""
        return ()

    def docs(self, model: ModelMeta | None, operation: Operation) -> EntryDocs | None:
        """What the API description says of such a route because of the entry."""
        return None

    def transforms(self, seat: Seat) -> Iterable[tuple[type[Model], Transform]]:
        """The fields whose values it changes in answers, by model."""
        return ()

    def warnings(self, seat: Seat) -> Iterable[str]:
        """What the log says at the start."""
        return ()


@dataclass(frozen=True, slots=True)
class Placement:
    """A pipeline whose entries stand where they belong, and what was found on the way."""

    pipeline: Pipeline
    problems: list[str]
    warnings: list[str]
    seats: list[tuple[Entry, Seat]] = field(default_factory=list)  # every entry that was placed, and where


def place_entries(pipeline: Pipeline, models: Sequence[ModelMeta] | None) -> Placement:
    """Put the pieces of every entry into the steps; without `models` none can be judged by its fields."""
    placement = Placement(Pipeline(), [], [])
    placement.pipeline.openapi = pipeline.openapi
    for step in pipeline.steps:
        for registration in step.registrations:
            if isinstance(registration.fn, Entry):
                _place(registration, registration.fn, models, placement)
            else:
                getattr(placement.pipeline, step.name).registrations.append(registration)
    for entry, seat in placement.seats:
        where = f"pipeline.{seat.step}: {entry.name}"
        placement.problems.extend(f"{where}: {p}" for p in entry.problems_beside(seat, placement))
    for registration in pipeline.openapi.auth.registrations:
        if isinstance(registration.fn, Entry):
            placement.problems.extend(_description_problems(registration.fn))
    return placement


def _place(
    registration: Registration, entry: Entry, models: Sequence[ModelMeta] | None, placement: Placement
) -> None:
    where = f"pipeline.{registration.step}: {registration.name}"
    problems = [*entry.mistakes, *_step_problems(registration, entry)]
    if models is not None and not problems:
        seat = _seat(registration, entry, models)
        problems += _field_problems(entry, seat)
        if not problems:
            problems += entry.problems(seat)
            placement.warnings.extend(f"{where}: {warning}" for warning in entry.warnings(seat))
            placement.seats.append((entry, seat))
            for piece in entry.pieces(seat):
                step = getattr(placement.pipeline, piece.step)
                step.registrations.append(_piece_registration(registration, entry, seat, piece))
    placement.problems.extend(f"{where}: {problem}" for problem in problems)


def _seat(registration: Registration, entry: Entry, models: Sequence[ModelMeta]) -> Seat:
    if registration.models is not None:
        acting = [meta for meta in models if meta.name in registration.models]
    else:
        acting = [meta for meta in models if all(find_field(meta, name) for name in entry.fields)]
    return Seat(
        registration.step,
        registration.at,
        tuple(acting),
        registration.operations,
        registration.models is not None,
        {meta.name: meta for meta in models},
    )


def _piece_registration(registration: Registration, entry: Entry, seat: Seat, piece: Piece) -> Registration:
    return replace(
        registration,
        fn=entry,
        step=piece.step,
        at=piece.at,
        models=frozenset(meta.name for meta in seat.models) if seat.is_named or entry.fields else None,
        operations=registration.operations if piece.operations is None else piece.operations,
        rank=piece.rank,
        make=piece.make,
    )


def _step_problems(registration: Registration, entry: Entry) -> Iterator[str]:
    positions = entry.homes.get(registration.step)
    if positions is None:
        homes = " or ".join(f"pipeline.{step}" for step in entry.homes)
        yield f"it does nothing on this step; register it on {homes}"
    elif registration.at not in positions:
        places = " or ".join(f"at={str(position)!r}" for position in positions)
        yield f"it does nothing at={str(registration.at)!r}; use {places}"
    operations = registration.operations
    acts_for = entry.acts_for or frozenset()
    if operations and acts_for and not any(covered(operations, one, item=True) for one in acts_for):
        yield f"it does nothing for {', '.join(sorted(operations))}; it is for {', '.join(sorted(acts_for))}"


def _field_problems(entry: Entry, seat: Seat) -> Iterator[str]:
    """Fields that a named model lacks; for an entry without models=, those that no model has."""
    if seat.is_named:
        for meta in seat.models:
            for name in entry.fields:
                if find_field(meta, name) is None:
                    yield f"{meta.name} has no field {name!r}{did_you_mean(name, meta.by_name)}"
        return
    models = seat.registered.values()
    missing = [name for name in entry.fields if not any(find_field(meta, name) for meta in models)]
    names = {name for meta in models for name in meta.by_name}
    yield from (f"no model has a field {name!r}{did_you_mean(name, names)}" for name in missing)
    if entry.fields and not (missing or seat.models):
        yield f"no model has all of the fields {', '.join(map(repr, entry.fields))}"


def _description_problems(entry: Entry) -> Iterator[str]:
    where = f"pipeline.openapi.auth: {entry.name}"
    yield from (f"{where}: {mistake}" for mistake in entry.mistakes)
    if not entry.in_description:
        yield f"{where}: it does nothing there; entries of auth guard the description"


def action_problems(entry: Entry) -> Iterator[str]:
    """The problems of an entry in the middleware= of an action."""
    yield from (f"{entry.name}: {mistake}" for mistake in entry.mistakes)
    if not entry.in_actions:
        yield f"{entry.name}: it means nothing without a model; register it on the pipeline, for models"


def require_field(meta: ModelMeta, name: str) -> FieldMeta:
    """The field of that name, which was checked when the entry was placed."""
    field = find_field(meta, name)
    assert field is not None, f"{meta.name} has no field {name!r}"
    return field


async def ask(ctx: Context, fn: Callable[..., Any], *args: Any) -> Any:
    """The result of a callback, plain or async; what it raises refuses the request, never lets it pass."""
    try:
        outcome = fn(*args)
        return await outcome if inspect.isawaitable(outcome) else outcome
    except RequestError:
        raise
    except Exception as error:
        raise CallbackFailed(f"{getattr(fn, '__qualname__', fn)} failed") from error
