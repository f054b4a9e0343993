"""Values of durable work as pages show them: what stands below the name of a secret is masked.

>>> mask({"user": "ada", "api_key": "k"}, SECRET_NAMES)
{'user': 'ada', 'api_key': '•••'}
>>> mask([["Authorization", "Bearer k"], {"name": "Cookie", "value": "k"}], SECRET_NAMES)
[['Authorization', '•••'], {'name': 'Cookie', 'value': '•••'}]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

MASK = "•••"
SECRET_NAMES = ("password", "secret", "token", "authorization", "api_key", "apikey", "cookie")
_DEEPEST = 60


class LostMask(ValueError):
    """A mask in a list that was changed around it, so that nobody can say whose secret it stands for."""


def mask(value: Any, names: Sequence[str], depth: int = 0) -> Any:
    """The value with everything below such a key replaced; headers come as pairs or with name and value."""
    if depth > _DEEPEST:
        return MASK
    if isinstance(value, dict):
        label = value.get("name", value.get("key"))
        is_named = isinstance(label, str) and is_secret(label, names)
        return {
            key: MASK
            if child is not None and (is_secret(str(key), names) or (is_named and key == "value"))
            else mask(child, names, depth + 1)
            for key, child in value.items()
        }
    if isinstance(value, list):
        is_pair = len(value) == 2 and isinstance(value[0], str) and is_secret(value[0], names)
        if is_pair and isinstance(value[1], str):
            return [value[0], MASK]
        return [mask(child, names, depth + 1) for child in value]
    return value


def is_secret(key: str, names: Sequence[str]) -> bool:
    """Whether a key looks as if a secret stood below it."""
    text = key.lower().replace("-", "_")
    return any(name.lower().replace("-", "_") in text for name in names)


def unmask(edited: Any, stored: Any, masked: Any) -> Any:
    """What somebody edited who saw `masked`: where a mask is left, the stored value stands again.

    Entries of a list are told apart by what was shown of them; `LostMask` where that does not say which
    one a mask belongs to, because a secret must not move to another address.
    """
    if not _has_mask(edited):
        return edited
    if isinstance(edited, dict) and isinstance(stored, dict) and isinstance(masked, dict):
        return {key: unmask(child, stored.get(key), masked.get(key)) for key, child in edited.items()}
    if isinstance(edited, list) and isinstance(stored, list) and isinstance(masked, list):
        return _unmask_list(edited, stored, masked)
    if edited != masked:
        raise LostMask
    return stored


def _unmask_list(edited: list[Any], stored: list[Any], masked: list[Any]) -> list[Any]:
    is_same_length = len(edited) == len(stored)
    entries = []
    for place, child in enumerate(edited):
        if not _has_mask(child):
            entries.append(child)
            continue
        if is_same_length and child == masked[place]:
            entries.append(stored[place])
            continue
        secrets = [stored[i] for i, shown in enumerate(masked) if shown == child]
        if secrets and all(one == secrets[0] for one in secrets):
            entries.append(secrets[0])
        elif is_same_length and not secrets and masked[place] not in edited:
            entries.append(unmask(child, stored[place], masked[place]))
        else:
            raise LostMask
    return entries


def _has_mask(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_mask, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and value == MASK


def as_json(value: Any) -> str:
    """A value as a page shows it."""
    return json.dumps(value, ensure_ascii=False, indent=2)
