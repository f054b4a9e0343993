"""Auth entries: who is asking, and whether they may.

from maniflex.middleware import auth

server.pipeline.auth.register(auth.jwt("…"))
server.pipeline.auth.register(auth.require_role("admin"), operations="delete")
"""

from maniflex._callables import explain_section
from maniflex.middleware.auth.authenticator import verify
from maniflex.middleware.auth.bearer import jwks, jwt
from maniflex.middleware.auth.csrf_tokens import csrf, csrf_token
from maniflex.middleware.auth.guards import (
    all_of,
    allow_anonymous,
    allow_public_read,
    allow_public_write,
    any_of,
    block_operation,
    enforce,
    not_,
    require_auth,
    require_owner,
    require_role,
    require_scope,
)
from maniflex.middleware.auth.header_keys import ApiKeys, api_keys, basic
from maniflex.middleware.auth.passwords import hash_password, needs_rehash, verify_password
from maniflex.middleware.auth.token_routes import Credentials, LoginLimits, mount_logout
from maniflex.middleware.auth.tokens import TokenPair, Tokens
from maniflex.middleware.stores.port import Revoker
from maniflex.middleware.stores.revoker import MemoryRevoker, RedisRevoker, SqlRevoker

__all__ = [
    "ApiKeys",
    "Credentials",
    "LoginLimits",
    "MemoryRevoker",
    "RedisRevoker",
    "Revoker",
    "SqlRevoker",
    "TokenPair",
    "Tokens",
    "all_of",
    "allow_anonymous",
    "allow_public_read",
    "allow_public_write",
    "any_of",
    "api_keys",
    "basic",
    "block_operation",
    "csrf",
    "csrf_token",
    "enforce",
    "hash_password",
    "jwks",
    "jwt",
    "mount_logout",
    "needs_rehash",
    "not_",
    "require_auth",
    "require_owner",
    "require_role",
    "require_scope",
    "verify",
    "verify_password",
]

explain_section(globals(), "auth", __all__)
