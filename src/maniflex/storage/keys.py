"""Storage keys: what one may look like, and the key of a new upload. The only home of these rules.

A key is a relative path of components with `/` between them. All backends refuse the same keys, so that
an application may move from a directory to a bucket and back.
"""

from __future__ import annotations

import re
from uuid import uuid4

from maniflex.errors import InvalidKey

META_SUFFIX = ".meta.json"  # LocalStorage keeps what is known of `name` in `name.meta.json`
LONGEST_KEY = 900  # bytes; S3 and Azure allow 1024, and a prefix needs room
LONGEST_COMPONENT = 255 - len(META_SUFFIX)  # bytes; a file name has 255
LONGEST_NAME = 120
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")


def check_key(key: str) -> str:
    """The key as it is, or `InvalidKey`."""
    if problem := key_problem(key):
        raise InvalidKey(problem)
    return key


def key_problem(key: object) -> str | None:
    """What is wrong with a key, as a sentence for logs; None when nothing is."""
    if not isinstance(key, str) or not key:
        return f"a storage key is text that is not empty, not {key!r}"
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return f"storage key {key!a} has half a character"
    if size > LONGEST_KEY:
        return f"storage key {key[:50]!r}… is longer than {LONGEST_KEY} bytes"
    if _CONTROL.search(key):
        return f"storage key {key!r} has a control character or a backslash"
    for component in key.split("/"):
        if problem := _component_problem(component):
            return f"storage key {key!r} {problem}"
    return None


def _component_problem(component: str) -> str | None:
    if not component:
        return "has an empty component, or begins or ends with a slash"
    if component.startswith("."):
        return "has a component that begins with a dot"
    if component.lower().endswith(META_SUFFIX):
        return f"has a component that ends with {META_SUFFIX}, where metadata is kept"
    if len(component.encode()) > LONGEST_COMPONENT:
        return f"has a component longer than {LONGEST_COMPONENT} bytes"
    return None


def new_key(filename: str) -> str:
    """The key of a new upload: `uploads/<random>/<name>`.

    Random, because the ids of records count upwards and a key must not be guessed from the one before.
    """
    return f"uploads/{uuid4()}/{safe_name(filename)}"


def safe_name(filename: str) -> str:
    """A file name as the last component of a key: ASCII letters, digits, `.`, `_` and `-`."""
    name = _UNSAFE.sub("_", filename).strip(".")[:LONGEST_NAME].strip(".")
    if name.lower().endswith(META_SUFFIX):
        name = f"{name[: -len(META_SUFFIX)]}_meta_json"
    return name or "file"
