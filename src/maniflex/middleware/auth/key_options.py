"""The keys of an authenticator as its arguments give them, with every mistake in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from maniflex.middleware.auth.keys import (
    ALGORITHMS,
    BadKey,
    VerifyingKey,
    missing_library,
    secret_key,
)
from maniflex.middleware.auth.keys import (
    public_key as read_public_key,
)


def read_keys(
    owner: str, secret: Any, public_key: Any, algorithms: Iterable[str] | None, mistakes: list[str]
) -> tuple[VerifyingKey, ...]:
    """The keys to try, in order; mistakes in them are added to `mistakes`."""
    missing = missing_library(asymmetric=public_key is not None)
    if missing is not None:
        mistakes.append(library_mistake(owner, missing))
        return ()
    sources, read = (secret, secret_key) if public_key is None else (public_key, read_public_key)
    usable = list(_read_each(sources, read, mistakes))
    if not usable and not mistakes:
        mistakes.append("the list of keys is empty, so no token could be checked")
    return narrow(usable, algorithms, mistakes)


def library_mistake(owner: str, library: str) -> str:
    """What the start says when an optional library is not installed."""
    return f'{owner} needs {library}: pip install "maniflex[auth]"'


def _read_each(
    sources: Any, read: Callable[[Any], VerifyingKey], mistakes: list[str]
) -> Iterable[VerifyingKey]:
    for source in sources if isinstance(sources, list | tuple) else (sources,):
        try:
            yield read(source)
        except BadKey as error:
            mistakes.append(str(error))


def narrow(
    usable: list[VerifyingKey], algorithms: Iterable[str] | None, mistakes: list[str]
) -> tuple[VerifyingKey, ...]:
    """The keys for the algorithms that were names; each key must have one of them."""
    if algorithms is None:
        return tuple(usable)
    names = [algorithms] if isinstance(algorithms, str) else list(algorithms)
    unknown = [name for name in names if name not in ALGORITHMS]
    mistakes.extend(f"there is no algorithm {name!r}" for name in unknown)
    fitting_keys = tuple(key.narrow_to(names) for key in usable)
    if not unknown and any(not key.algorithms for key in fitting_keys):
        mistakes.append(f"none of the algorithms {', '.join(names)} belongs to the key")
    return fitting_keys
