"""Passwords: hashing and checking, in threads, at most as many at once as there are cores.

Argon2id is the default; bcrypt is for texts that another system made, or by name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, TypeVar

from maniflex.errors import DeclarationError

T = TypeVar("T")
_checking: ContextVar[bool] = ContextVar("maniflex_checking_password", default=False)
BCRYPT_COST, COSTS = 12, range(10, 19)  # some 200 ms; from 50 ms to 15 s
MOST_BCRYPT_BYTES = 72  # bcrypt takes no notice of what comes after
_BCRYPT = ("$2a$", "$2b$", "$2x$", "$2y$")


async def hash_password(plain: str, *, algorithm: str = "argon2id", cost: int = BCRYPT_COST) -> str:
    """The text to store instead of a password; `algorithm` is `"argon2id"` or `"bcrypt"`.

    `cost` is for bcrypt: each step up takes twice the time.
    """
    if cost not in COSTS:
        raise ValueError(f"cost={cost!r} is none of {COSTS.start} to {COSTS.stop - 1}")
    return await _in_thread(partial(_hash, plain, algorithm, cost))


async def verify_password(plain: str, hashed: str | None) -> bool:
    """Whether the stored text was made from this password.

    None, for an account that does not exist, takes as long as a wrong password and is False.
    """
    return await _in_thread(partial(_verify, plain, hashed))


@contextmanager
def checking_password() -> Iterator[None]:
    """A block in which the application checks a password: a hash that it stores there is of the same one."""
    token = _checking.set(True)
    try:
        yield
    finally:
        _checking.reset(token)


def is_checking_password() -> bool:
    """Whether such a block is under way."""
    return _checking.get()


async def needs_rehash(hashed: str) -> bool:
    """Whether the stored text was made in a weaker way than a new one would be."""
    if not hashed.startswith("$argon2id$"):
        return True
    outcome: bool = _argon2().check_needs_rehash(hashed)
    return outcome


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_threads(), work)


@cache
def _threads() -> ThreadPoolExecutor:
    """As many threads as cores: a hash takes 19 MiB, and more at once would not be faster."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="maniflex-password")


def _hash(plain: str, algorithm: str, cost: int) -> str:
    if algorithm == "argon2id":
        text: str = _argon2().hash(plain)
        return text
    if algorithm != "bcrypt":
        raise ValueError(f"there is no password algorithm {algorithm!r}; there are argon2id and bcrypt")
    password = plain.encode()
    if len(password) > MOST_BCRYPT_BYTES:
        raise ValueError(f"bcrypt takes passwords of at most {MOST_BCRYPT_BYTES} bytes")
    bcrypt = _library("bcrypt", "bcrypt")
    hash_text: str = bcrypt.hashpw(password, bcrypt.gensalt(cost)).decode()
    return hash_text


def _verify(plain: str, hashed: str | None) -> bool:
    if hashed is not None and hashed.startswith(_BCRYPT):
        return _verify_bcrypt(plain, hashed)
    placeholder = _placeholder()  # made in any case, so that the first unknown account takes no longer
    is_readable = hashed is not None and hashed.startswith("$argon2")
    hash_text = hashed if is_readable else placeholder
    argon2 = _library("argon2", "argon2-cffi")
    try:
        _argon2().verify(hash_text, plain)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError, UnicodeEncodeError):
        return False
    return is_readable


def _verify_bcrypt(plain: str, hashed: str) -> bool:
    try:
        outcome: bool = _library("bcrypt", "bcrypt").checkpw(
            plain.encode()[:MOST_BCRYPT_BYTES], hashed.encode()
        )
    except ValueError:  # the stored text is none, or the password has a NUL
        return False
    return outcome


@cache
def _placeholder() -> str:
    """What passwords of unknown accounts are compared with; no password fits it."""
    text: str = _argon2().hash(os.urandom(32).hex())
    return text


@cache
def _argon2() -> Any:
    # The least that OWASP advises: logins of many users at once must not take all memory.
    return _library("argon2", "argon2-cffi").PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


def _library(module: str, package: str) -> Any:
    """An optional library; what it is needed for is said when it is missing."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise DeclarationError(f'passwords need {package}: pip install "maniflex[auth]"') from None
