"""The texts of refusals as they stand in the source of the package, for tests of catalogues."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import maniflex
from maniflex.errors import RequestError

PACKAGE = Path(maniflex.__file__).parent
# Operators and developers read what these say, in English; of 5xx a client is told a general text.
_NOT_TOLD = ("admin", "cli", "doctor", "migrations", "schema", "storage", "testing", "transfer", "encryption")
_HELPERS = {"detail", "_refuse", "refusal", "_refusal", "invalid", "BadClaim"}
_OTHERS = ("backed_store.py",)  # where these names stand for something else
_SAMPLE = "7"
_CONSTANT = re.compile(r"^_?([A-Z]+_)?(MESSAGE|CALLER)$")
_WORD = re.compile(r"[A-Za-z_]+")


def texts_of_refusals() -> dict[str, str]:
    """Every text that a call of an error of 4xx, or of a helper that makes one, has: text → where."""
    kinds = {kind.__name__: kind.status for kind in _kinds_of(RequestError)}
    texts: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if place.parts[0] in _NOT_TOLD or place.name in _OTHERS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _is_told(node, kinds, path.name):
                texts |= dict.fromkeys(_texts_of_call(node), f"{place}:{node.lineno}")
            elif isinstance(node, ast.Assign) and _CONSTANT.search(ast.unparse(node.targets[0])):
                texts |= dict.fromkeys(_told_texts(node.value), f"{place}:{node.lineno}")
    return texts


def _kinds_of(cls: type[RequestError]) -> Iterator[type[RequestError]]:
    yield cls
    for kind in cls.__subclasses__():
        yield from _kinds_of(kind)


def _is_told(call: ast.Call, kinds: dict[str, int], file: str) -> bool:
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    if name == "Abort":
        status = call.args[0].value if isinstance(call.args[0], ast.Constant) else 400
        return isinstance(status, int) and status < 500
    if name == "__init__":
        return file == "errors.py"
    return name in _HELPERS or kinds.get(name, 500) < 500


def _texts_of_call(call: ast.Call) -> Iterator[str]:
    values = [*call.args, *(one.value for one in call.keywords if one.arg == "message")]
    for value in values:
        yield from _told_texts(value)


def _told_texts(value: ast.expr) -> Iterator[str]:
    for node in _choices(value):
        text = _text_of(node)
        if len(_WORD.findall(text)) > 1:  # otherwise it is made of other texts
            yield text


def _choices(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.IfExp):
        yield from (*_choices(node.body), *_choices(node.orelse))
    elif isinstance(node, ast.BoolOp):
        yield from (choice for value in node.values for choice in _choices(value))
    else:
        yield node


def _text_of(node: ast.expr) -> str:
    """A literal, with a sample in the place of each part that differs; empty for what is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    text = ""
    if isinstance(node, ast.JoinedStr):
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
            elif not text[-1:].isalnum():  # what follows a letter is a hint, which may be empty
                text += _SAMPLE
    return text
