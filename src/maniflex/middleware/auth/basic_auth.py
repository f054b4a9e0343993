"""`auth.basic`: user name and password with every request."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal

from maniflex._callables import is_async
from maniflex.errors import CallbackFailed, RequestError
from maniflex.middleware.auth.authenticator import Authenticator, Verify
from maniflex.middleware.auth.passwords import checking_password
from maniflex.middleware.auth.schemes import BASIC, Schemes
from maniflex.pipeline.context import AuthInfo, Context
from maniflex.pipeline.registration import takes

Check = Callable[[str, str], AuthInfo | Awaitable[AuthInfo | None] | None]
MOST_BYTES = 8192
_REALM = re.compile(r"[\x20-\x7e]*")


def basic(
    check: Check, *, realm: str = "maniflex", verify: Verify | Literal[False] | None = None
) -> Authenticator:
    """Authenticate by `Authorization: Basic`; `check(username, password)` says who that is, or None.

    A plain `check` runs in a thread, because checking a password takes long.
    `verify(ctx, claims, info)` is asked beside `auth.verify`; False asks neither.
    """
    return Basic(check, realm, verify)


class Basic(Authenticator):
    """Asks the application for every user name and password."""

    name = "auth.basic"
    scheme = "basic"

    def __init__(self, check: Check, realm: str, verify: Verify | Literal[False] | None) -> None:
        super().__init__(verify)
        self._check = check
        self._is_async = is_async(check)
        if not takes(check, 2):
            self.mistakes.append("check is called with (username, password), which it does not take")
        if not _REALM.fullmatch(realm) or '"' in realm or "\\" in realm:
            self.mistakes.append("realm is plain text without quotes")
        self.challenge = f'Basic realm="{realm}", charset="UTF-8"'

    def schemes(self) -> Schemes:
        return BASIC

    def credential(self, ctx: Context) -> bytes | None:
        return self.authorization(ctx)

    async def authenticate(self, ctx: Context, credential: bytes) -> AuthInfo:
        pair = _user_and_password(credential)
        info = None if pair is None else await self._ask(ctx, *pair)
        if info is None:
            raise self.refusal("UNAUTHORIZED", "the user name or the password is wrong")
        return replace(info, auth_method="basic")

    async def _ask(self, ctx: Context, username: str, password: str) -> AuthInfo | None:
        check: Callable[[str, str], Any] = self._check
        try:
            with checking_password():
                if self._is_async:
                    outcome = await check(username, password)
                else:
                    outcome = await ctx.runtime.threads.run(check, username, password)
        except RequestError:
            raise
        except Exception as error:
            raise CallbackFailed("the check of auth.basic failed") from error
        if outcome is not None and not isinstance(outcome, AuthInfo):
            raise CallbackFailed("the check of auth.basic returned neither an AuthInfo nor None")
        return outcome


def _user_and_password(credential: bytes) -> tuple[str, str] | None:
    if len(credential) > MOST_BYTES:
        return None
    try:
        text = b64decode(credential, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    username, colon, password = text.partition(":")
    return (username, password) if colon else None
