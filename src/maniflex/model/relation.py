"""`belongs_to()`, `has_many()`, `many_to_many(...)`: relations in a class body.

The only home of relation declarations. They are no columns: the class body's companion becomes a
`RelationSpec` on the class and an attribute that holds the related records once they are loaded.
Which model is meant is read from the annotation when the application starts, so models may name
each other in any order.
"""

from __future__ import annotations

import builtins
import dataclasses
import re
import sys
from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, ForwardRef, Literal, get_args, get_origin

from maniflex._names import did_you_mean
from maniflex.model.declared import RelationKind
from maniflex.model.field import OnDeleteName

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


@dataclasses.dataclass(frozen=True, slots=True)
class RelationSpec:
    """What a companion was given; `annotation` and `module` say which model it means."""

    kind: RelationKind
    key: Any = None
    through: Any = None
    far_key: Any = None
    on_delete: Any = None
    nested: Any = False
    unknown: tuple[str, ...] = ()
    annotation: Any = None
    module: str = ""


def belongs_to(
    *,
    key: str | None = None,
    on_delete: OnDeleteName | None = None,
    nested: bool = False,
    init: Literal[False] = False,
    **unknown: Any,
) -> Any:
    """The one record our column `key` refers to; by convention `<name>_id`.

    With `nested`, bodies may make and change it along with ours.
    """
    mistakes = _unknown_options(unknown, ("key", "on_delete", "nested"))
    return RelationSpec(
        RelationKind.BELONGS_TO, key=key, on_delete=on_delete, nested=nested, unknown=mistakes
    )


def has_many(
    *, key: str | None = None, nested: bool = False, init: Literal[False] = False, **unknown: Any
) -> Any:
    """The records whose column `key` refers to us; by convention the one that belongs to this model.

    With `nested`, bodies may make, change and delete them along with ours.
    """
    mistakes = _unknown_options(unknown, ("key", "nested"))
    return RelationSpec(RelationKind.HAS_MANY, key=key, nested=nested, unknown=mistakes)


def many_to_many(
    *,
    through: str | type | None = None,
    key: str | None = None,
    far_key: str | None = None,
    nested: bool = False,
    init: Literal[False] = False,
    **unknown: Any,
) -> Any:
    """The records joined to us by the rows of the junction model `through`.

    With `nested`, bodies may link, unlink and make them along with ours.

    `key` and `far_key` are its columns for us and for them, where it has several that could be meant.
    """
    return RelationSpec(
        RelationKind.MANY_TO_MANY,
        key=key,
        through=through,
        far_key=far_key,
        nested=nested,
        unknown=_unknown_options(unknown, ("through", "key", "far_key", "nested")),
    )


def _unknown_options(options: Mapping[str, Any], known_options: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"unknown option {name!r}{did_you_mean(name, known_options)}" for name in options)


class NotLoaded(AttributeError):
    """A relation was read that was not loaded with its record."""


class RelationAttribute(property):
    """Holds the related records of one instance, or says how to load them."""

    # A property, because pydantic lets no other attribute be assigned on an instance.

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        try:
            return instance.__dict__[self.name]
        except KeyError:
            model = type(instance).__name__
            raise NotLoaded(
                f"{model}.{self.name} is not loaded; include it when reading: include=[{self.name!r}]"
            ) from None

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.name] = value

    def __delete__(self, instance: Any) -> None:
        instance.__dict__.pop(self.name, None)


def find_relation(annotation: Any, value: Any) -> RelationSpec | None:
    """The companion a class attribute is, whether assigned or inside `Annotated`."""
    if isinstance(value, RelationSpec):
        return value
    if get_origin(annotation) is Annotated:
        return next((m for m in annotation.__metadata__ if isinstance(m, RelationSpec)), None)
    return None


class _Lenient(dict[str, Any]):
    """Names for `eval`; one that does not exist yet stands for itself."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        return ForwardRef(name)


def evaluate(annotation: Any, module: str, local: Mapping[str, Any] | None = None) -> Any:
    """An annotation written as text, as far as its names exist by now."""
    if not isinstance(annotation, str):
        return annotation
    module_names = vars(sys.modules[module]) if module in sys.modules else {}
    try:
        return eval(annotation, {"__builtins__": {}}, _Lenient({**module_names, **(local or {})}))
    except Exception:  # whatever it is, pydantic meets it again and says so
        return annotation


def mentioned_names(annotations: Mapping[str, Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """The local names that annotations mention, to resolve them by later."""
    names = {name for text in annotations.values() for name in _IDENTIFIER.findall(str(text))}
    return {name: local[name] for name in names if name in local}


def target_name(spec: RelationSpec) -> str | None:
    """The name of the model a companion's annotation means."""
    return _model_in(evaluate(spec.annotation, spec.module), spec.module)


def _model_in(annotation: Any, module: str) -> str | None:
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        read = evaluate(annotation, module)
        if isinstance(read, ForwardRef):
            return read.__forward_arg__
        return _last_name(annotation) if isinstance(read, str) else _model_in(read, module)
    if get_origin(annotation) is Annotated:
        return _model_in(annotation.__origin__, module)
    arguments = [item for item in get_args(annotation) if item is not NoneType and item is not None]
    if arguments:
        return _model_in(arguments[0], module)
    return annotation.__name__ if isinstance(annotation, type) else None


def _last_name(annotation: str) -> str | None:
    names = [name for name in _IDENTIFIER.findall(annotation) if name != "None"]
    return names[-1] if names else None


def reference_name(reference: Any) -> str | None:
    """The model name in `relation=`, `through=` or `lock_scope=`, given as text or as the class."""
    if isinstance(reference, type):
        return reference.__name__
    return reference if isinstance(reference, str) and reference else None
