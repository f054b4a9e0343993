"""What a run or a message is about: a record, written as `order/<id>`.

It is the `subject` of CloudEvents: the class name in snake case, and the id.
"""

from __future__ import annotations

import re
from typing import Any

from maniflex._names import snake_case
from maniflex.errors import ValidationFailed
from maniflex.model.base import Model

LONGEST = 300
_SUBJECT = re.compile(r"[a-z][a-z0-9_]*/[^\s/\x00][^\x00]*")


def subject_of(record: Any) -> str | None:
    """The subject of a stored record, or a text that is one already."""
    if record is None:
        return None
    text = f"{snake_case(type(record).__name__)}/{_id_of(record)}" if isinstance(record, Model) else record
    if not isinstance(text, str) or len(text) > LONGEST or not _SUBJECT.fullmatch(text):
        message = "is a stored record, or a text such as order/7"
        raise ValidationFailed(f"about {message}", [{"field": "about", "message": message}])
    return text


def _id_of(record: Any) -> str:
    return "" if record.id is None else str(record.id)
