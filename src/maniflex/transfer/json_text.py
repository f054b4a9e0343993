"""JSON that a file contains: values that can be sent on, or a sentence why they cannot.

>>> read_json('{"a": [1]}')
{'a': [1]}
>>> read_json('["\\\\ud800"]')
Traceback (most recent call last):
maniflex.transfer.json_text.UnusableJson: contains half of a character
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

DEEPEST = 100  # levels; what encodes a request counts them on the stack


class UnusableJson(ValueError):
    """A text that is no JSON, or JSON that no request can carry."""


def read_json(text: str, *, parse_float: Callable[[str], Any] | None = None) -> Any:
    """The value of a JSON text."""
    try:
        value = json.loads(text, parse_float=parse_float, parse_constant=_refuse)
    except (ValueError, ArithmeticError, RecursionError):
        raise UnusableJson("is no JSON") from None
    if text.count("[") + text.count("{") > DEEPEST and _depth(value) > DEEPEST:
        raise UnusableJson(f"is nested deeper than {DEEPEST} levels")
    if "\\u" in text and not _is_encodable(value):
        raise UnusableJson("contains half of a character")
    return value


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, list | dict)]:
        depth += 1
        level = [child for one in level for child in (one.values() if isinstance(one, dict) else one)]
    return depth


def _is_encodable(value: Any) -> bool:
    """Whether all texts are whole: an escape can stand for one half of a pair of surrogates."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True
