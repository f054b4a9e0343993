"""Tags of versions: which an `If-None-Match` names, and the part of a tag that `If-Match` compares.

A tag of `response.cache` on a model with `optimistic_lock` has two parts, `"row.representation"`: the version
of the stored row, and of the answer as it was sent. A caller that writes sends the whole tag back; only the
first part has to be current.
"""

from __future__ import annotations

import hashlib
import re

_TAG = re.compile(r'(?:W/)?"([^"]*)"')


def names_tag(header: str, tag: str) -> bool:
    """Whether an `If-None-Match` names this tag: by itself, in a list, weakly, or with `*`."""
    return header.strip() == "*" or tag in _TAG.findall(header)


def digest_of(body: bytes) -> str:
    """The tag of these bytes, without quotes."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def row_part(tag: str) -> str:
    """The tag of the stored row, as it stands in a tag that may have a second part."""
    first, dot, _ = tag.partition(".")
    return f'{first}"' if dot else tag
