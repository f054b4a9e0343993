"""A class body on its way to becoming a model: what pydantic gets to see of it, and what we keep.

The only place that takes class bodies apart. Companions become relations, `field(...)`s become
pydantic fields, class keywords become options. Nothing a body says can raise here: mistakes gather
in `problems`, and the registry reports all of them at once.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, ClassVar, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo, ModelPrivateAttr
from pydantic_core import PydanticUndefined

from maniflex._callables import cache_by_class
from maniflex._ids import new_id
from maniflex._names import did_you_mean
from maniflex.model.annotations import classify, is_unresolved
from maniflex.model.declared import ModelOptions
from maniflex.model.field import FieldSpec, field, merge_specs
from maniflex.model.relation import RelationSpec, evaluate, find_relation, mentioned_names
from maniflex.model.value_rules import Rules

OPTION_NAMES = tuple(option.name for option in dataclass_fields(ModelOptions))
RESERVED = frozenset(name for name in dir(BaseModel) if name.startswith("model_"))
OWN_FIELDS = ("id", "created_at", "updated_at")
_OWN_CONFIG = frozenset(
    {
        "alias_generator",
        "defer_build",
        "extra",
        "from_attributes",
        "frozen",
        "populate_by_name",
        "protected_namespaces",
        "strict",
        "validate_by_alias",
        "validate_by_name",
    }
)
_NOT_INHERITED = {"table": None, "renamed_from": None, "query": None, "backend": None, "history_table": None}


# A partial rather than a function: every create calls it twice.
utc_now = partial(datetime.now, UTC)


# Their results always fit, so no create pays for looking at them again.
_TRUSTED_FACTORIES = (new_id, utc_now, list, dict)


class ClassBody:
    """One class body, and what was found in it."""

    def __init__(
        self, name: str, bases: tuple[type, ...], namespace: dict[str, Any], local: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.bases = bases
        self.namespace = namespace
        self.module: str = namespace.get("__module__", "")
        self.annotations = _own_annotations(namespace)
        nested_classes = {key: value for key, value in namespace.items() if isinstance(value, type)}
        self.local = {**mentioned_names(self.annotations, local), **nested_classes}
        self.problems: list[str] = []
        self.relations: dict[str, RelationSpec] = {}

    def prepare(self) -> None:
        """Leave in the namespace only what pydantic should see."""
        self._take_mixins()
        self._check_config()
        for name in list(self.annotations):
            self._take_annotated(name)
        for name in list(self.namespace):
            self._refuse_unannotated(name)
        self.namespace["__annotations__"] = self.annotations
        self.namespace.pop("__annotate_func__", None)
        self.namespace["__pydantic_parent_namespace__"] = self.local

    def trouble(self, name: str, text: str) -> None:
        self.problems.append(f"{self.name}.{name}: {text}")

    def drop(self, name: str) -> None:
        # ClassVar rather than gone: a mixin further up may still annotate the name.
        self.annotations[name] = ClassVar[Any]
        self.namespace.pop(name, None)

    def _take_mixins(self) -> None:
        """Copy what plain classes among the bases declare, as if it stood in the body."""
        mixin_annotations: dict[str, Any] = {}
        for base in reversed(self.bases):
            for cls in reversed(base.__mro__):
                if not issubclass(cls, BaseModel) and "__annotations__" in vars(cls):
                    for name, annotation in _resolved_annotations(cls).items():
                        mixin_annotations[name] = annotation
                        if name in vars(cls) and name not in self.annotations:
                            self.namespace[name] = vars(cls)[name]
        self.annotations = {**mixin_annotations, **self.annotations}

    def _check_config(self) -> None:
        config = self.namespace.get("model_config")
        if config is None or BaseModel in self.bases:
            return
        for key in sorted(_OWN_CONFIG & set(config)):
            self.problems.append(f"{self.name}: model_config may not set {key!r}")
        self.namespace["model_config"] = {k: v for k, v in config.items() if k not in _OWN_CONFIG}

    def _take_annotated(self, name: str) -> None:
        annotation = evaluate(self.annotations[name], self.module, self.local)
        if not is_unresolved(annotation):
            # Now rather than by pydantic, for whom a field called `date` or `list` would hide the type.
            self.annotations[name] = annotation
        value = self.namespace.get(name, PydanticUndefined)
        if get_origin(annotation) is ClassVar or annotation is ClassVar:
            return
        relation = find_relation(annotation, value)
        if relation is not None:
            self._take_relation(name, relation)
        elif name.startswith("_"):
            if not (name.startswith("__") or isinstance(value, ModelPrivateAttr)):
                self.trouble(name, "a field name cannot start with an underscore")
                self.drop(name)
        elif name in RESERVED:
            self.trouble(name, "this name is taken by pydantic; choose another and set alias=")
            self.drop(name)
        else:
            self.namespace[name] = self.field_info(name, value)

    def _take_relation(self, name: str, relation: RelationSpec) -> None:
        for text in relation.unknown:
            self.trouble(name, text)
        self.relations[name] = replace(relation, annotation=self.annotations[name], module=self.module)
        self.drop(name)

    def field_info(self, name: str, value: Any) -> Any:
        """An explicit FieldInfo, so that pydantic never takes an attribute of a base for a default."""
        if isinstance(value, FieldInfo):
            return value
        info = FieldInfo()
        if name in OWN_FIELDS:
            info.metadata.extend(self._inherited_spec(name))
        if isinstance(value, FieldSpec):
            info.metadata.append(value.on_attribute())
        elif value is not PydanticUndefined:
            info.metadata.append(FieldSpec({"default": value}, assigned=True))
        return info

    def _inherited_spec(self, name: str) -> list[FieldSpec]:
        """What the base says of id and the timestamps, for a body that only adds to it."""
        infos = (getattr(base, "__pydantic_fields__", {}).get(name) for base in self.bases)
        rules = next((rules_of(info) for info in infos if info is not None), None)
        return [] if rules is None else [FieldSpec(rules.spec.options)]

    def _refuse_unannotated(self, name: str) -> None:
        value = self.namespace[name]
        if name in self.annotations:
            return
        is_inherited = any(name in getattr(base, "__pydantic_fields__", ()) for base in self.bases)
        if isinstance(value, (FieldSpec, RelationSpec, FieldInfo)) or (is_inherited and _is_data(value)):
            self.trouble(name, "has no type annotation")
            del self.namespace[name]
        elif not name.startswith("_") and name != "model_config" and _is_data(value):
            self.trouble(name, "has no type annotation; annotate it, as ClassVar if it is no column")
            del self.namespace[name]


def _is_data(value: Any) -> bool:
    """Whether a class attribute is a value rather than behaviour."""
    return not (callable(value) or hasattr(value, "__get__"))


def _own_annotations(namespace: Mapping[str, Any]) -> dict[str, Any]:
    if sys.version_info >= (3, 14) and "__annotations__" not in namespace:
        import annotationlib

        annotate = annotationlib.get_annotate_from_class_namespace(namespace)
        lazily = annotationlib.Format.FORWARDREF
        return {} if annotate is None else annotationlib.call_annotate_function(annotate, lazily)
    return dict(namespace.get("__annotations__", {}))


def _resolved_annotations(mixin: type) -> dict[str, Any]:
    own = list(vars(mixin)["__annotations__"])
    try:
        hints = get_type_hints(mixin, include_extras=True)
    except Exception:  # a forward reference: resolved, or reported, with the model's own
        return dict(vars(mixin)["__annotations__"])
    return {name: hints[name] for name in own}


def read_options(body: ClassBody, keywords: dict[str, Any]) -> ModelOptions:
    options = ModelOptions()
    for base in reversed(body.bases):
        base_options = vars(base).get("__options__")
        if base_options is not None:
            options = merged_options(options, replace(base_options, **_NOT_INHERITED))
    for name in [name for name in keywords if name not in OPTION_NAMES]:
        hint = did_you_mean(name, (*OPTION_NAMES, "abstract"))
        body.problems.append(f"{body.name}: unknown option {name!r}{hint}")
        del keywords[name]
    return merged_options(options, ModelOptions(**keywords))


def merged_options(base: ModelOptions, override: ModelOptions | None) -> ModelOptions:
    """`base` with everything that `override` sets."""
    if override is None:
        return base
    settings = {name: getattr(override, name) for name in OPTION_NAMES}
    return replace(base, **{name: value for name, value in settings.items() if value is not None})


def add_marker(body: ClassBody, options: ModelOptions) -> None:
    """`soft_delete=True` brings its field along, unless the body or a base declares one."""
    base_fields = {name for base in body.bases for name in getattr(base, "__pydantic_fields__", ())}
    if options.soft_delete is True and not {"deleted_at", "is_deleted"} & {*body.annotations, *base_fields}:
        body.annotations["deleted_at"] = datetime | None
        body.namespace["deleted_at"] = body.field_info("deleted_at", deletion_time())


def deletion_time() -> Any:
    return field(default=None, readonly=True, filterable=True)


def build(create: Callable[[dict[str, Any]], Any], body: ClassBody, namespace: dict[str, Any]) -> Any:
    """Let pydantic make the class; what it refuses becomes a problem and an empty class."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Field name .* shadows an attribute in parent")
        try:
            return create(namespace)
        except Exception as error:
            body.problems.append(f"{body.name}: {_first_line(error)}")
            class_attributes = ("__module__", "__qualname__", "__doc__", "__pydantic_parent_namespace__")
            return create({key: namespace[key] for key in class_attributes if key in namespace})


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def settle_fields(cls: type[BaseModel]) -> None:
    """Give every field whose type is known its rules and its default; safe to repeat."""
    for info in cls.__pydantic_fields__.values():
        if is_unresolved(info.annotation):
            continue
        rules = rules_of(info)
        if rules is None:
            shape = classify(info.annotation)
            attribute_specs = [item for item in info.metadata if isinstance(item, FieldSpec)]
            spec = merge_specs([*shape.specs, *attribute_specs])
            rules = Rules(shape, spec)
            info.metadata.insert(0, rules)
            _set_default(info, spec.options, shape.nullable)
        _set_serialization(info, rules.spec.options)


def _set_serialization(info: FieldInfo, options: Mapping[str, Any]) -> None:
    """How pydantic writes the field; it never writes a secret, not even inside another model."""
    if options.get("hidden") or options.get("writeonly"):
        info.exclude = True
    if any(options.get(option) for option in ("hidden", "writeonly", "encrypted")):
        info.repr = False
    alias = options.get("alias")
    if isinstance(alias, str) and alias:
        info.serialization_alias = alias


def _set_default(info: FieldInfo, options: Mapping[str, Any], nullable: bool) -> None:
    if "default" in options:
        info.default, info.default_factory = options["default"], None
    elif "default_factory" in options:
        factory = options["default_factory"]
        if callable(factory):
            info.default_factory = factory
            info.validate_default = factory not in _TRUSTED_FACTORIES
    elif nullable and info.is_required():
        info.default = None


def rules_of(info: FieldInfo) -> Rules | None:
    """The rules a settled field carries."""
    return next((item for item in info.metadata if isinstance(item, Rules)), None)


# What a class says of its fields: the text below an attribute, or the description in its annotation.
#
# Sources are read when somebody asks, once for each file; a class without a source file says nothing this
# way.


_Texts = dict[str, dict[str, str]]  # by the qualified name of the class, then by attribute


@cache_by_class
def field_texts(cls: type) -> Mapping[str, str]:
    """The texts of the fields that have one, those of base classes included."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if _has_fields(base):
            texts |= _written_below(base)
    fields: Mapping[str, Any] = getattr(cls, "__pydantic_fields__", {})
    texts |= {name: one_line(info.description) for name, info in fields.items() if info.description}
    return {name: text for name, text in texts.items() if name in fields}


def one_line(text: str) -> str:
    """The first paragraph, without its line breaks."""
    return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())


def _has_fields(cls: type) -> bool:
    """Whether it may declare fields: a model, or a mixin with annotations of its own."""
    return cls is not BaseModel and not vars(cls).keys().isdisjoint(("__annotations__", "__annotate_func__"))


def _written_below(cls: type) -> Mapping[str, str]:
    try:
        path = inspect.getsourcefile(cls)
    except (TypeError, OSError):  # made by code, or typed into a console
        return {}
    return {} if path is None else _texts_in(path, cls.__module__).get(cls.__qualname__, {})


@lru_cache(maxsize=256)
def _texts_in(path: str, module: str) -> _Texts:
    try:
        # The module knows how to read a file that lies in an archive.
        tree = ast.parse("".join(linecache.getlines(path, vars(sys.modules[module]))))
    except (SyntaxError, ValueError):
        return {}
    return {name: texts for name, node in _classes(tree, "") if (texts := dict(_attributes(node)))}


def _classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """All classes of a file by their qualified names."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef():
                yield prefix + child.name, child
                yield from _classes(child, f"{prefix}{child.name}.")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _classes(child, f"{prefix}{child.name}.<locals>.")
            case _:
                yield from _classes(child, prefix)


def _attributes(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Attributes, and the text that stands alone below each."""
    for statement, below in zip(node.body, node.body[1:], strict=False):
        match statement, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, one_line(text)
