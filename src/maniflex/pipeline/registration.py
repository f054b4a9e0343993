"""Middleware as it is registered: on a step, for some models and operations, at a position."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from threading import Lock
from typing import Any, TypeVar, cast

from maniflex._callables import explain_arguments, label_of
from maniflex._names import did_you_mean
from maniflex.errors import CallbackFailed, DeclarationError, RequestError
from maniflex.model.base import Model
from maniflex.model.meta import ModelMeta
from maniflex.model.registry import name_of, unknown_model
from maniflex.pipeline.context import Context, OpenAPIContext
from maniflex.pipeline.operation import Operation, covered, opened
from maniflex.query.parse import PARAMETERS

Next = Callable[[], Awaitable[None]]
# A plain `def` may say truthfully that its `next()` gives nothing to await.
Middleware = Callable[[Context, Next], Awaitable[None] | None] | Callable[[Context, Callable[[], None]], None]
SpecMiddleware = (
    Callable[[OpenAPIContext, Next], Awaitable[None] | None]
    | Callable[[OpenAPIContext, Callable[[], None]], None]
)
F = TypeVar("F", bound=Callable[..., Any])


class At(StrEnum):
    """Where a middleware stands in its step."""

    BEFORE = "before"
    AFTER = "after"
    REPLACE = "replace"


# Places where an entry can stand besides the steps of the pipeline.
ACTION = "action"  # the middleware= of an action
FILES = "files_middleware"
DESCRIPTION = "openapi.auth"
BESIDE_STEPS = frozenset({ACTION, FILES, DESCRIPTION})


class AuthPart(Enum):
    """What an entry of the auth step does about callers."""

    AUTHENTICATOR = "authenticator"  # it finds out who is asking; no caller passes unknown, unless exempted
    DEMAND = "demand"  # no caller passes it unknown, whoever was to find out
    GUARD = "guard"  # it lets callers pass by who they are
    EXEMPTION = "exemption"  # it lets anonymous callers pass the authenticators after it


def part_of(fn: Any) -> AuthPart | None:
    """What a middleware does about callers; None of code of the application's own, which says nothing."""
    part = getattr(fn, "part", None)
    return part if isinstance(part, AuthPart) else None


def is_exemption(fn: Any) -> bool:
    """Whether it lets anonymous callers pass the authenticators after it."""
    return part_of(fn) is AuthPart.EXEMPTION


def demands_identity(fn: Any) -> bool:
    """Whether no caller passes it unknown, unless an exemption stands before it."""
    return part_of(fn) in (AuthPart.AUTHENTICATOR, AuthPart.DEMAND)


@dataclass(frozen=True, slots=True)
class Registration:
    """One middleware with its scope."""

    fn: Middleware
    step: str
    at: At
    name: str
    models: frozenset[str] | None = None
    operations: frozenset[Operation] | None = None
    rank: int = 0  # of a part of a catalogue entry: its place in the step, whenever it was registered
    make: Callable[[ModelMeta | None, Operation], Any] | None = None  # of such a part: it for one model
    wrap: Callable[[Any], Any] | None = None  # of such a part: the default step with it around
    errors: tuple[tuple[int, tuple[str, ...]], ...] = ()  # status and codes of its refusals, to describe
    named: tuple[type[Model] | str, ...] = ()  # the models as they were written
    params: tuple[tuple[str, str], ...] = ()  # parameters of the query string that it reads, and their texts

    def middleware(self, model: ModelMeta | None, operation: Operation) -> Middleware | None:
        """The middleware for requests to that model; None when it has nothing to do there."""
        return self.fn if self.make is None else self.make(model, operation)

    def unknown_models(self, registered: Mapping[str, ModelMeta] | None) -> Iterator[str]:
        """The problems of models that it names and that are not registered, as far as those can be read."""
        if registered is not None:
            yield from filter(None, (unknown_model(model, registered) for model in self.named))

    def matches(self, model: ModelMeta | None, operation: Operation, *, item: bool) -> bool:
        if self.models is not None and (model is None or model.name not in self.models):
            return False
        if self.operations is None:
            return True
        meets = opened if is_exemption(self.fn) else covered
        return meets(self.operations, operation, item=item)


class Step:
    """One step of the pipeline, open for registration until the server is sealed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.registrations: list[Registration] = []
        self.sealed = False
        self._lock = Lock()

    @explain_arguments(lambda step: f"pipeline.{step.name}.register")
    def register(
        self,
        fn: Middleware,
        *,
        models: type[Model] | str | Iterable[type[Model] | str] | None = None,
        operations: Operation | str | Iterable[Operation | str] | None = None,
        at: str = At.BEFORE,
        name: str | None = None,
        errors: Mapping[int, str | Iterable[str]] | None = None,
        params: str | Iterable[str] | Mapping[str, str] = (),
    ) -> None:
        """Run `fn` in this step for the given models and operations (all, unless told).

        `errors` are the codes it refuses with, by status, for the API description of its routes. `params` are
        the parameters of the query string that it reads, by name or with a sentence about each.
        """
        label = name or label_of(fn)
        where = f"pipeline.{self.name}: {label}"
        named_models = _models(models, where)
        if not callable(fn):
            raise DeclarationError(f"{where}: middleware must be callable")
        position = _position(at, where)
        if getattr(fn, "opens_transaction", False) and position is At.REPLACE:
            position = At.BEFORE  # a transaction goes around a step and takes none's place
        registration = Registration(
            fn,
            self.name,
            position,
            label,
            None if named_models is None else frozenset(name_of(model) for model in named_models),
            _operations(operations, where),
            errors=_errors(errors, where),
            named=named_models or (),
            params=_params(params, where),
        )
        with self._lock:  # a registration is either in every chain, or refused
            if self.sealed:
                raise DeclarationError(
                    f"pipeline.{self.name}: the server is sealed; register middleware before it starts"
                )
            self.registrations.append(registration)

    def seal(self, sealed: bool) -> None:
        with self._lock:
            self.sealed = sealed

    @explain_arguments(lambda step: f"pipeline.{step.name}.middleware")
    def middleware(
        self,
        *,
        models: type[Model] | str | Iterable[type[Model] | str] | None = None,
        operations: Operation | str | Iterable[Operation | str] | None = None,
        at: str = At.BEFORE,
        name: str | None = None,
        errors: Mapping[int, str | Iterable[str]] | None = None,
        params: str | Iterable[str] | Mapping[str, str] = (),
    ) -> Callable[[F], F]:
        """`register` as a decorator."""

        def decorate(fn: F) -> F:
            self.register(
                fn, models=models, operations=operations, at=at, name=name, errors=errors, params=params
            )
            return fn

        return decorate


class SpecStep:
    """One step; it has neither models nor operations to choose from."""

    def __init__(self, name: str) -> None:
        self.name = f"openapi.{name}"
        self._step = Step(self.name)

    @property
    def registrations(self) -> list[Registration]:
        return self._step.registrations

    @explain_arguments(lambda step: f"pipeline.{step.name}.register")
    def register(self, fn: SpecMiddleware, *, at: str = At.BEFORE, name: str | None = None) -> None:
        """Run `fn` in this step of every request for the description."""
        self._step.register(cast(Middleware, fn), at=at, name=name)

    @explain_arguments(lambda step: f"pipeline.{step.name}.middleware")
    def middleware(self, *, at: str = At.BEFORE, name: str | None = None) -> Callable[[F], F]:
        """`register` as a decorator."""

        def decorate(fn: F) -> F:
            self.register(fn, at=at, name=name)
            return fn

        return decorate

    def seal(self, sealed: bool) -> None:
        self._step.seal(sealed)


class OpenAPIPipeline:
    """The three steps of `/openapi.json`; the first also guards `/docs`."""

    def __init__(self) -> None:
        self.auth = SpecStep("auth")
        self.generate = SpecStep("generate")
        self.response = SpecStep("response")

    def seal(self, sealed: bool) -> None:
        for step in (self.auth, self.generate, self.response):
            step.seal(sealed)


STEPS = ("auth", "deserialize", "validate", "service", "db", "response")


class Pipeline:
    """The six steps every request to a model passes, in this order."""

    def __init__(self) -> None:
        self.auth = Step("auth")
        self.deserialize = Step("deserialize")
        self.validate = Step("validate")
        self.service = Step("service")
        self.db = Step("db")
        self.response = Step("response")
        self.openapi = OpenAPIPipeline()
        self.checks: list[Registration] = []  # of entries that add rules instead of middleware

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(getattr(self, name) for name in STEPS)

    def seal(self) -> None:
        for step in self.steps:
            step.seal(True)
        self.openapi.seal(True)

    def unseal(self) -> None:
        for step in self.steps:
            step.seal(False)
        self.openapi.seal(False)

    def with_model_middleware(self, models: Iterable[ModelMeta]) -> tuple[Pipeline, list[str]]:
        """A pipeline that has the models' own `middleware=` too, and the problems of those."""
        pipeline, problems = Pipeline(), []
        pipeline.openapi = self.openapi
        for step in pipeline.steps:
            step.registrations = list(getattr(self, step.name).registrations)
        for meta in models:
            for name, fn, problem in middleware_of_model(meta.options.middleware):
                if problem:
                    problems.append(f"{meta.name}: middleware: {problem}")
                else:
                    step = getattr(pipeline, name)
                    step.register(fn, models=[meta.cls], at=_usual_position(fn, name))
                    if meta.is_internal:  # the framework's own guards stay where its routes are left out
                        step.registrations[-1] = replace(step.registrations[-1], named=())
        return pipeline, problems

    def add_files_middleware(self, middleware: Iterable[Middleware]) -> None:
        """Let functions and entries of `files_middleware` end the auth step of the routes of files."""
        for fn in middleware:
            if can_guard_files(fn) and takes(fn, 2):  # others are said by the routes of files
                self.auth.register(fn, operations=Operation.FILES, at=At.AFTER)

    def problems(
        self, models: Mapping[str, ModelMeta] | None, served: Collection[Served] | None
    ) -> list[str]:
        """The problems of registrations: their functions, and models and operations nothing serves.

        Without `models` or `served`, because those could not be made, their questions are left out.
        """
        registrations = [*(r for step in self.steps for r in step.registrations), *self.checks]
        problems = [
            f"pipeline.{r.step}: {r.name}: {problem}"
            for r in registrations
            for problem in _problems(r, models, served)
        ]
        return [*dict.fromkeys(problems)]


def homes_of(fn: Any) -> Mapping[str, Sequence[At]] | None:
    """The places where an entry can stand; None of the application's own code, which can stand anywhere."""
    homes = getattr(fn, "homes", None)
    return homes if isinstance(homes, Mapping) else None


def can_guard_files(fn: Any) -> bool:
    """Whether it is a function, or an entry that says so: one of the auth step that needs no model."""
    homes = homes_of(fn)
    return homes is None or {FILES, "auth"} <= homes.keys()


def acts_on_files(fn: Any) -> bool:
    """Whether it is an entry that acts on routes of files behind their auth step."""
    return FILES in (homes_of(fn) or ()) and not can_guard_files(fn)


def _usual_position(fn: Any, step: str) -> At:
    """Where a model's own middleware stands: before the step, unless an entry can only stand elsewhere."""
    positions = (homes_of(fn) or {}).get(step, ())
    return positions[0] if positions and At.BEFORE not in positions else At.BEFORE


Served = tuple[ModelMeta | None, Operation]


def middleware_of_model(middleware: Any) -> Iterator[tuple[str, Any, str]]:
    """Step, function and problem (empty for none) of each entry in a model's `middleware=`."""
    if not isinstance(middleware, Mapping | None):
        yield "", None, "it maps the name of a step to a function or a list of them"
        return
    for name, value in (middleware or {}).items():
        functions = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
        is_step = name in STEPS
        if not is_step:
            yield name, None, f"there is no step {name!r}{did_you_mean(str(name), STEPS)}"
        for fn in functions:
            if not callable(fn):
                yield name, None, f"{fn!r} on the step {name!r} is not callable"
            elif is_step:
                yield name, fn, ""


def _problems(
    r: Registration, models: Mapping[str, ModelMeta] | None, served: Collection[Served] | None
) -> Iterator[str]:
    if not takes(r.fn, 2):
        yield "middleware is called with (ctx, next), which it does not take"
    yield from r.unknown_models(models)
    explicit = _without_implied_search(r.operations or frozenset())
    unseen = sorted(explicit & UNSEEN_BY.get(r.step, frozenset()))
    for operation in unseen:
        yield f"{operation} requests never reach the {r.step} step, so it would not run"
    of_no_model = r.models is not None and bool(explicit & {*_WITHOUT_MODEL, *Operation.FILES})
    if r.models and Operation.ACTION in explicit:
        yield "an action belongs to no model, so it would not run"
    if r.models and Operation.SEARCH in explicit:
        yield "global search belongs to no model, so it would not run"
    if r.models and explicit & Operation.FILES:
        yield "the routes of single files belong to no model, so it would not run"
    if models is not None and served is not None and not (unseen or of_no_model):
        yield from _find_unserved(r, models, served)


def _find_unserved(
    r: Registration, models: Mapping[str, ModelMeta], served: Collection[Served]
) -> Iterator[str]:
    """The requests that a registration waits for and that no route serves, for each model that it names.

    One for everything may wait for models to come; `unused_models` of `entry.py` asks of entries with models.
    """
    if (r.models is not None and not r.named) or (r.models is None and r.operations is None):
        return
    unseen = UNSEEN_BY.get(r.step, frozenset())
    meeting = {m.name if m else "" for m, op in served if op not in unseen and r.matches(m, op, item=True)}
    idle = [""] if r.models is None and not meeting else sorted((r.models or meeting) - meeting)
    for name in (name for name in idle if not name or name in models):
        yield nothing_serves(r.operations, name)


def nothing_serves(operations: frozenset[Operation] | None, model: str) -> str:
    """The problem of middleware for requests that no route serves."""
    requests = " or ".join(sorted(operations)) + " requests" if operations else "requests"
    return f"nothing serves {requests}{f' to {model}' if model else ''}, so it would not run"


def takes(fn: Any, arguments: int) -> bool:
    """Whether a callable takes so many positional arguments; yes where its signature cannot be read."""
    if not callable(fn):
        return False
    try:
        signature = inspect.signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):  # written in C, without a signature
        return True
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def _without_implied_search(operations: frozenset[Operation]) -> frozenset[Operation]:
    """Without SEARCH and SUBSCRIBE where all reads are named: they came along and were not meant."""
    implied = {Operation.SEARCH, Operation.SUBSCRIBE}
    return operations - implied if operations >= Operation.READS else operations


_WITHOUT_MODEL = frozenset({Operation.ACTION, Operation.SEARCH})
_TRIMMED = frozenset(
    {
        Operation.ACTION,
        Operation.OPTIONS,
        Operation.SEARCH,
        Operation.PRESIGN_UPLOAD,
        Operation.UPLOAD_FILE,
        Operation.READ_FILE,
        Operation.DELETE_FILE,
    }
)
# Operations whose routes do not have the step.
UNSEEN_BY = dict.fromkeys(("deserialize", "validate", "service", "db"), _TRIMMED)


def _position(at: str, where: str) -> At:
    try:
        return At(at)
    except ValueError:
        raise DeclarationError(f"{where}: at={at!r} is none of 'before', 'after', 'replace'") from None


def _errors(errors: Any, where: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    if errors is None:
        return ()
    if not isinstance(errors, Mapping):
        raise DeclarationError(f"{where}: errors= gives codes by status, such as {{402: 'PLAN_LIMIT'}}")
    all_codes = tuple([(s, (c,) if isinstance(c, str) else tuple(c)) for s, c in errors.items()])
    for status, codes in all_codes:
        if type(status) is not int or not 400 <= status <= 599:
            raise DeclarationError(f"{where}: errors: {status!r} is no status of a refusal, 400 to 599")
        if not codes or not all(isinstance(code, str) and _CODE.fullmatch(code) for code in codes):
            raise DeclarationError(f"{where}: errors: a code of {status} is written like PLAN_LIMIT")
    return all_codes


_CODE = re.compile("[A-Z][A-Z0-9_]*")


def _params(params: Any, where: str) -> tuple[tuple[str, str], ...]:
    texts = params if isinstance(params, Mapping) else dict.fromkeys(texts_of(params), "")
    for name, text in texts.items():
        if not (isinstance(name, str) and name) or not isinstance(text, str):
            raise DeclarationError(f"{where}: params= lists names, or gives a sentence for each of them")
        if name in PARAMETERS:
            raise DeclarationError(f"{where}: params: {name!r} is a parameter of every list already")
    return tuple(texts.items())


def texts_of(value: Any) -> tuple[Any, ...]:
    """One text or several, as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value)


def _models(models: Any, where: str) -> tuple[type[Model] | str, ...] | None:
    if models is None:
        return None
    entries = (models,) if isinstance(models, type | str) else tuple(models)
    if not entries:
        raise DeclarationError(f"{where}: models is empty, so it would never run")
    for model in entries:
        if not isinstance(model, str) and not (isinstance(model, type) and issubclass(model, Model)):
            raise DeclarationError(f"{where}: {model!r} is neither a model nor the name of one")
    return entries


def _operations(operations: Any, where: str) -> frozenset[Operation] | None:
    if operations is None:
        return None
    names = [operations] if isinstance(operations, str) else list(operations)
    if not names:
        raise DeclarationError(f"{where}: operations is empty, so it would never run")
    for name in names:
        if name not in [*Operation]:  # what is no text may not be hashable
            raise DeclarationError(f"{where}: there is no operation {name!r}{_operation_meant(name)}")
    return frozenset(Operation(name) for name in names)


# Other words for operations, and routes that have none of their own.
_OTHER_WORDS = {
    **dict.fromkeys(("get", "retrieve"), Operation.READ),
    **dict.fromkeys(("post", "insert"), Operation.CREATE),
    **dict.fromkeys(("patch", "put"), Operation.UPDATE),
    **dict.fromkeys(("remove", "destroy"), Operation.DELETE),
    "history": Operation.READ_HISTORY,
    "attachment": Operation.READ_ATTACHMENT,
}
_BOUND_BY = {"aggregate": Operation.LIST, "restore": Operation.UPDATE}


def _operation_meant(name: object) -> str:
    """What to write in the place of a name that no operation has, to end a message with."""
    word = name.lower() if isinstance(name, str) else ""
    if word in _OTHER_WORDS:
        return f"; write {_OTHER_WORDS[word].value!r}"
    if word in _BOUND_BY:
        return f"; rules for {_BOUND_BY[word].value!r} bind that route"
    names = [operation.value for operation in Operation]
    return did_you_mean(name, names) or f"; there are: {', '.join(names)}"


# Functions of the application that entries ask: plain or async, and never taken for a yes when they fail.


MEANT_FOR_TASKS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)  # perhaps; `answer` tells


async def ask(ctx: object, fn: Callable[..., Any], *args: Any) -> Any:
    """The result of a callback, plain or async; what it raises refuses the request, never lets it pass."""
    try:
        outcome = fn(*args)
        return await outcome if inspect.isawaitable(outcome) else outcome
    except (RequestError, *MEANT_FOR_TASKS):
        raise
    except BaseException as error:
        raise callback_failure(fn) from error


def callback_failure(fn: Any) -> CallbackFailed:
    """The refusal of a request whose callback raised something else."""
    return CallbackFailed(f"{getattr(fn, '__qualname__', fn)} failed")


# Middleware that has its say before a request goes on, and nothing to do afterwards.
#
# In a chain it is a step in a row, where other middleware goes around all that comes behind it. That
# spares a request two coroutines for each, and every wait for the database a way through them.


class Admission:
    """Lets a request pass or refuses it."""

    def admit(self, ctx: Context) -> Awaitable[None] | None:
        """Let it pass, or raise; gives something to await only where that takes waiting."""
        raise NotImplementedError

    async def __call__(self, ctx: Context, next: Next) -> None:
        """Be middleware, where something else than a chain runs it."""
        outcome = self.admit(ctx)
        if outcome is not None:
            await outcome
        await next()
