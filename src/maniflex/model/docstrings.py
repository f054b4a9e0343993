"""What a class says of its fields: the text below an attribute, or the description in its annotation.

Sources are read when somebody asks, once for each file; a class without a source file says nothing this way.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from maniflex._callables import cache_by_class

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
