"""Settings from texts, as environment variables hold them; `ValueError` for one that cannot be read."""

from __future__ import annotations

import re
from datetime import timedelta


def read_int(text: str) -> int:
    """A whole number."""
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def read_bool(text: str) -> bool:
    """True or false, in one of the ways people write them."""
    values = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }
    if text.lower() not in values:
        raise ValueError(f"{text!r} is neither true nor false")
    return values[text.lower()]


def read_texts(text: str) -> tuple[str, ...]:
    """The parts of a list with commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def read_proxies(text: str) -> int | tuple[str, ...]:
    """A number of hops, or a list of networks."""
    return int(text) if re.fullmatch(r"\d{1,3}", text.strip()) else read_texts(text)


_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000, "": 1}


def read_duration(text: str) -> timedelta:
    """A duration such as 30s, 500ms or 5m."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w|y|)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 30s, 500ms or 5m")
    try:
        return timedelta(seconds=float(match[1]) * _UNITS[match[2]])
    except OverflowError:
        raise ValueError(f"{text!r} is longer than a duration can be") from None


def parse_size(text: str) -> int:
    """The bytes of a text such as "16MB"; `ValueError` for another."""
    match = re.fullmatch(r"(\d+)\s*(B|KB|MB|GB|)", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 4MB")
    return int(match[1]) * {"": 1, "B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3}[match[2].upper()]
