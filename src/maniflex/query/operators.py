"""The filter operators: data, used unchanged by the parser, the SQL writer and the docs."""

from __future__ import annotations

from enum import StrEnum


class Op(StrEnum):
    """What a filter does with a field and a value."""

    EQ = "eq"


OPERATORS: dict[str, str] = {Op.EQ: "the field equals the value"}
