"""JSON that a form, a cookie or an address brought."""

from __future__ import annotations

import json
from typing import Any


def read_json_text(text: str | bytes) -> Any:
    """The value of a text; `ValueError` for one that is no JSON, or nested deeper than can be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
