"""Who minted the key of a file, and so may name it."""

from __future__ import annotations

import inspect
import json
import logging
import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from maniflex._caller import caller
from maniflex.config import Config
from maniflex.errors import EncryptionError, Unavailable
from maniflex.files.store import StoredFile
from maniflex.pipeline.context import Context
from maniflex.query.operators import Op
from maniflex.query.query import Forced
from maniflex.storage.port import ServedHere
from maniflex.storage.signer import UrlSigner

if TYPE_CHECKING:
    from maniflex.files.desk import FileDesk


class Owner(NamedTuple):
    """A caller, as the rows of files note it; an empty scope is nobody's, so anybody may name the key.

    A quota counts the files of a scope; a file that no record names is also its actor's alone, if it has one.
    """

    scope: str = ""
    tenant_id: str | None = None
    actor_id: str | None = None
    name: str = ""  # what the scope is a hash of: what `file_scope` says, the tenant or the user
    is_shared: bool = False  # `file_scope` said the scope, so all whom it gives one text are one owner


NOBODY = Owner()


def is_owner(file: StoredFile, owner: Owner) -> bool:
    """Whether a file is this caller's: it was uploaded in this scope, by this person if by one with an id."""
    if not file.scope or file.scope != owner.scope:
        return False
    return owner.is_shared or file.actor_id is None or file.actor_id == owner.actor_id


def is_uploader(file: StoredFile, owner: Owner) -> bool:
    """Whether a file that no record names is open to this caller: it is this caller's, or nobody's.

    One that a record has named was behind the rules of that record, so it is only the person's who uploaded
    it, and nobody's, not even an anonymous caller's, if nobody in particular did.
    """
    if file.was_linked:
        return bool(file.scope) and (file.scope, file.actor_id) == (owner.scope, owner.actor_id)
    return not file.scope or is_owner(file, owner)


async def owner_of(ctx: Context, file_scope: Callable[..., Any] | None = None) -> Owner:
    """Whose the uploads of a request are; the scope is that of its tenant, else its user, else its bounds."""
    auth = ctx.auth
    tenant, actor = (None, None) if auth is None else (auth.tenant_id or None, auth.user_id or None)
    if file_scope is not None:
        outcome = file_scope(ctx)
        scope = await outcome if inspect.isawaitable(outcome) else outcome
        return Owner(_hash("scope", scope) if scope else "", tenant, actor, str(scope or ""), is_shared=True)
    return Owner(_scope(tenant, actor) or _forced_scope(ctx), tenant, actor, tenant or actor or "")


def owner_in_code() -> Owner:
    """The owner of what code stores outside requests, or in the name of one."""
    who = caller()
    name = who.tenant_id or who.actor_id or ""
    return Owner(_scope(who.tenant_id, who.actor_id), who.tenant_id, who.actor_id, name)


def _scope(tenant: str | None, actor: str | None) -> str:
    if tenant:
        return _hash("tenant", tenant)
    return _hash("user", actor) if actor else ""


def _forced_scope(ctx: Context) -> str:
    """The equalities that every row of the request has, whatever model they are about."""
    equalities = {
        (item.name, str(item.value))
        for item in ctx.forced
        if isinstance(item, Forced) and item.op is Op.EQ and item.model is None
    }
    return _hash("forced", sorted(equalities)) if equalities else ""


def _hash(kind: str, value: Any) -> str:
    return sha256(json.dumps([kind, value]).encode()).hexdigest()


# The secret that URLs of this server are signed with: a setting, or one that the database keeps.


log = logging.getLogger("maniflex.files")

SECRET = "files"  # its name in the table of secrets


async def bind_signer(desk: FileDesk, config: Config) -> UrlSigner:
    """The signer of this server, which its storage is handed if its URLs lead here."""
    if config.files_signing_key is not None:
        secret = config.files_signing_key
    else:
        secret = secrets.token_hex(32)
        try:
            secret = await desk.rows.shared_secret(SECRET, secret, desk.clock.now())
        except (EncryptionError, Unavailable) as error:
            log.error("%s: the secret of file URLs does not open; those signed here hold here alone", error)
    signer = UrlSigner(config.path_prefix + config.files_path, secret.encode(), clock=desk.clock)
    if desk.has_storage and isinstance(desk.storage, ServedHere):
        desk.storage.bind(signer)
    return signer
