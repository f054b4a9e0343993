"""What can be said of a function before it is called, and of a call with wrong arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial, wraps
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from maniflex._names import did_you_mean
from maniflex.errors import DeclarationError

T = TypeVar("T")


def is_async(fn: Any) -> bool:
    """Whether calling it gives something to await."""
    whole = _without_partials(fn)
    return inspect.iscoroutinefunction(whole) or inspect.iscoroutinefunction(type(whole).__call__)


def cache_by_class(fn: Callable[[type], T]) -> Callable[[type], T]:
    """Remember what a function says of each class while the class lives; the value must not hold it."""
    results: WeakKeyDictionary[type, T] = WeakKeyDictionary()

    @wraps(fn)
    def look_up(cls: type) -> T:
        try:
            return results[cls]
        except KeyError:
            result = results[cls] = fn(cls)
            return result

    return look_up


def label_of(fn: Any) -> str:
    """The name a function goes by in messages and traces; an object without one goes by its class."""
    whole = _without_partials(fn)
    return getattr(whole, "__name__", None) or type(whole).__name__


def _without_partials(fn: Any) -> Any:
    while isinstance(fn, partial):
        fn = fn.func
    return fn


# Calls of declarations with wrong arguments: what is wrong, in the words of whoever wrote them.
#
# Python blames an inner class: `Bearer.__init__() got an unexpected keyword argument 'isuer'`. Functions and
# classes that are decorated here say `auth.jwt: there is no argument 'isuer'; did you mean 'issuer'?`.


P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


def explain_arguments(label: str | Callable[[Any], str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: wrong arguments raise a `DeclarationError` that calls the function by this name.

    Of a method, the label is a function of its object.
    """

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        @wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return fn(*args, **kwargs)
            except (TypeError, AttributeError, ValueError):
                problems = [*argument_problems(fn, args, kwargs)] or [*type_problems(fn, args, kwargs)]
                if not problems:  # raised by what it did
                    raise
                name = label if isinstance(label, str) else label(args[0])
                raise DeclarationError(*(f"{name}: {problem}" for problem in problems)) from None

        return call

    return decorate


def explain_class(cls: C) -> C:
    """A decorator: wrong arguments of a class of options raise a `DeclarationError` that names the class."""
    init = cls.__dict__.get("__init__")
    if inspect.isfunction(init) and not hasattr(init, "__wrapped__"):
        type.__setattr__(cls, "__init__", explain_arguments(lambda self: type(self).__name__)(init))
    return cls


def explain_section(members: dict[str, Any], section: str, names: Sequence[str]) -> None:
    """Explain the functions that a section of the catalogue shows under these names: `auth.jwt`."""
    for name in names:
        member = members[name]
        if inspect.isfunction(member) and not inspect.iscoroutinefunction(member):
            members[name] = explain_arguments(f"{section}.{name}")(member)


def argument_problems(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Why the function cannot be called with these; nothing where it can."""
    parameters = [*inspect.signature(fn).parameters.values()]
    open_end = next((p for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD), None)
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    by_name = [p.name for p in parameters if p.kind in _NAMED]
    if open_end is not None:
        options = _option_names(fn, open_end.name)
        if options is None:
            return
        by_name += options
    shown_names = [name for name in by_name if name != "self"]
    unknown = [name for name in kwargs if name not in by_name]
    for name in unknown:
        hint = did_you_mean(name, shown_names) or (
            f"; there are: {', '.join(shown_names)}" if shown_names else ""
        )
        yield f"there is no argument {name!r}{hint}"
    given_by_place = {p.name for p in positional[: len(args)]}
    for name in sorted(given_by_place & kwargs.keys()):
        yield f"{name!r} is given twice"
    is_counted = all(p.kind is not inspect.Parameter.VAR_POSITIONAL for p in parameters)
    if is_counted and len(args) > len(positional):
        most = len([p for p in positional if p.name != "self"])
        given_count = len(args) - (len(positional) - most)
        keywords = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
        hint = f"; give {', '.join(keywords)} by name" if keywords else ""
        yield f"it takes {most} arguments without a name, and {given_count} are given{hint}"
    required_names = [
        p.name for p in parameters if p.default is p.empty and p.kind in {*_POSITIONAL, *_NAMED}
    ]
    missing = [name for name in required_names if name not in given_by_place and name not in kwargs]
    if missing and not unknown:
        yield f"{' and '.join(map(repr, missing))} is missing"


def type_problems(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Which arguments are of another type than the function says; it was called with them and failed."""
    try:
        hints = get_type_hints(fn)
    except NameError:  # a type that only type checkers import
        return
    parameters = inspect.signature(fn).parameters
    for name, value in inspect.signature(fn).bind(*args, **kwargs).arguments.items():
        if parameters[name].kind is not inspect.Parameter.VAR_KEYWORD and name in hints:
            is_many = parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            for one in value if is_many else (value,):
                if not _fits(one, hints[name]):
                    text = inspect.formatannotation(parameters[name].annotation).strip("'")
                    yield f"{name} is {text}, not {one!r}"


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, as far as that can be seen; a function is not asked what it takes."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if hint in (None, NoneType):
        return value is None
    if origin is type:
        return isinstance(value, type)
    kind = origin or hint
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if not isinstance(value, (int, float) if kind is float else kind):
        return False
    if inner and isinstance(value, str | bytes):  # one where many are meant
        return False
    is_of_one_type = len(inner) == 1 or inner[1:] == (...,)
    if not is_of_one_type or not isinstance(value, Collection):
        return True
    return all(_fits(one, inner[0]) for one in value)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _option_names(fn: Any, parameter: str) -> list[str] | None:
    """The names in `**options: Unpack[SomeOptions]`; None where any name is taken."""
    whole = inspect.unwrap(fn)
    hint = whole.__annotations__.get(parameter)
    # This one alone: the types of others may be there for type checkers only.
    hinted_type = eval(hint, whole.__globals__) if isinstance(hint, str) else hint
    options = get_args(hinted_type)[0] if get_args(hinted_type) else None
    return list(options.__annotations__) if isinstance(options, type) else None
