"""The secret that URLs of this server are signed with: a setting, or one that the database keeps."""

from __future__ import annotations

import secrets

from maniflex.config import Config
from maniflex.files.desk import FileDesk
from maniflex.storage.port import ServedHere
from maniflex.storage.signer import UrlSigner

SECRET = "files"  # its name in the table of secrets


async def bind_signer(desk: FileDesk, config: Config) -> UrlSigner:
    """The signer of this server, which its storage is handed if its URLs lead here."""
    if config.files_signing_key is not None:
        secret = config.files_signing_key
    else:
        secret = await desk.rows.shared_secret(SECRET, secrets.token_hex(32), desk.clock.now())
    signer = UrlSigner(config.path_prefix + config.files_path, secret.encode(), clock=desk.clock)
    if desk.has_storage and isinstance(desk.storage, ServedHere):
        desk.storage.bind(signer)
    return signer
