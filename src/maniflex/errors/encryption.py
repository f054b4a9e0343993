"""What can go wrong with encrypted values: keys that lack, envelopes that do not open."""

from __future__ import annotations

from maniflex.errors import RequestError

__all__ = ["DecryptionError", "EncryptionError", "EncryptionNotConfigured"]


class EncryptionError(RequestError):
    """A value could not be encrypted; `problem` says why, for logs alone, without values and keys."""

    status, code, message = 500, "ENCRYPTION_ERROR", "a value could not be encrypted"

    def __init__(self, problem: str = "", *, model: str = "", record_id: str = "") -> None:
        super().__init__(model=model, record_id=record_id)
        self.problem = problem

    def _subject(self) -> str:
        return ": ".join(filter(None, (super()._subject(), self.problem)))


class DecryptionError(EncryptionError):
    """A stored value does not open: it was changed or moved, or its key is not here."""

    code, message = "DECRYPTION_ERROR", "a stored value could not be decrypted"


class EncryptionNotConfigured(EncryptionError):
    """There is no key for an encrypted value."""

    code, message = "ENCRYPTION_NOT_CONFIGURED", "the server has no key for encrypted values"
