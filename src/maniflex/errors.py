"""Every exception of the framework, in one family.

    ManiflexError
    ├── DeclarationError            ours: stops the start, all problems in one message
    │   └── ConfigError             a setting or environment variable that cannot be used
    ├── Fatal                       raised by a handler of durable work: do not try again
    ├── RunCancelled · LeaseLost    raised to a handler whose run is no longer its own to finish
    ├── RunFailed                   a run that was waited for ended without a result
    ├── Lagged · QueueFull          a listener or an in-process subscription could not keep up with events
    └── RequestError                the caller's: becomes the error envelope
        ├── Abort                   raised by `ctx.abort(...)`
        ├── InvalidJson · EmptyBody · InvalidBody · InvalidQuery · InvalidSchedule 400
        ├── HistoryChanged · CursorGone 400 (an InvalidQuery)
        ├── InvalidFormat 400 · ExportTooLarge 413 · ExportBusy 503
        ├── MultipartError · NoFile · MissingKey 400 · RangeNotSatisfiable 416
        ├── Unauthorized 401 · Forbidden 403 · NotFound 404 · MethodNotAllowed 405
        ├── OutOfScope · FileForbidden 403 (a Forbidden) · FileNotFound · FileNotSet 404 (a NotFound)
        ├── Conflict                                                         409
        │   ├── ConstraintViolation · ForeignKeyViolation · DeleteRestricted · FileInUse
        │   └── SerializationFailure · FileGone    retryable
        ├── AnswerTooLarge 400 · OwnAnswerTooLarge 500 (an AnswerTooLarge)
        ├── BodyTooSlow 408 (an InvalidBody) · PreconditionFailed 412 · BodyTooLarge 413 · UriTooLong 414
        ├── BatchTooLarge                                                    413
        ├── FileTooLarge 413 · UnsupportedMediaType 415 · FileTypeNotAllowed 415
        ├── ValidationFailed · MissingLocale · RecordLocked                  422
        ├── UnknownFile · TooManyFiles                                       422
        ├── UnusableScope · UnfilledField · CallbackFailed · RawSqlRefused   500
        ├── EncryptionError                                                  500
        │   └── DecryptionError · EncryptionNotConfigured
        ├── UnusableQuery 500 (an InvalidQuery)
        ├── DatabaseError                                                    500
        │   └── TransactionError    TX_BEGIN_ERROR, TX_COMMIT_ERROR, TX_REQUIRED, TX_OPEN, TX_TOO_MANY_READS
        ├── BackendError                                                     502
        ├── StorageError                                                     500
        │   └── InvalidKey · FileExists · StorageFull 507
        ├── NoStorage · PresignUnsupported                                   501
        ├── Unavailable                                                      503
        └── Timeout                                                          504

Drivers' exceptions are translated in their own `db/*.py` and kept as `__cause__`; nothing of
their text reaches a client. Those of object stores are translated in `storage/` and not kept, because
their texts can hold signed URLs.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

Detail = Mapping[str, Any]
_MOST_SHOWN = 10
MOST_DETAILS = 100  # in one answer


class ManiflexError(Exception):
    """The root of everything maniflex raises."""


class DeclarationError(ManiflexError):
    """The application is declared wrongly; the message lists every problem found."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__(
            problems[0]
            if len(problems) == 1
            else f"{len(problems)} problems:" + "".join(f"\n  - {problem}" for problem in problems)
        )


class ConfigError(DeclarationError):
    """A setting or an environment variable cannot be used."""


class Fatal(ManiflexError):
    """Raised by a handler of durable work whose failure no retry can mend."""


class RunCancelled(ManiflexError):
    """The run was cancelled; its handler is stopped by this."""


class LeaseLost(ManiflexError):
    """The run belongs to another worker now; nothing more of it may be written here."""


class RunFailed(ManiflexError):
    """A run that was waited for failed, was cancelled or deleted; `status` and `error` say how."""

    def __init__(self, run_id: str, status: str, error: str | None) -> None:
        self.run_id, self.status, self.error = run_id, status, error
        super().__init__(f"run {run_id} {status}{f': {error}' if error else ''}")


class Lagged(ManiflexError):
    """A listener fell behind: more events came than it may have waiting."""


class QueueFull(ManiflexError):
    """An in-process subscription has no room for another event; the other subscriptions got it."""


class RequestError(ManiflexError):
    """Becomes the error envelope: status, code, message, per-field details.

    `str()` is for logs and tracebacks and says more than the envelope: the model, the id of the record
    and the fields. Of a secret field it gives the name alone.
    """

    status: int = 500
    code: str = "INTERNAL"
    message: str = "something went wrong"
    retryable: bool = False
    model: str = ""
    record_id: str = ""
    secrets: Collection[str] = ()  # fields, by API name, of which nothing but the name is told

    def __init__(
        self,
        message: str | None = None,
        details: Sequence[Detail] | Detail | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        model: str = "",
        record_id: str = "",
        secrets: Collection[str] = (),
    ) -> None:
        if message is not None:
            self.message = message
        self.details = details
        self.headers = headers
        if model:
            self.model, self.record_id, self.secrets = model, record_id, secrets
        super().__init__(self.message)

    def __str__(self) -> str:
        subject = self._subject()
        text = f"{self.message} ({subject})" if subject else self.message
        details = [] if isinstance(self.details, Mapping) else list(self.details or ())
        further = (detail for detail in details[:_MOST_SHOWN] if not _says(text, detail))
        offences = [offence for offence in map(self._offence, further) if offence and offence not in text]
        if len(details) > _MOST_SHOWN:
            offences.append(f"and {len(details) - _MOST_SHOWN} more")
        return f"{text}: {'; '.join(offences)}" if offences else text

    def _subject(self) -> str:
        """The record the error is about."""
        return f"{self.model} {self.record_id}".rstrip()

    def _offence(self, detail: Detail) -> str:
        field, message = str(detail.get("field", "")), str(detail.get("message", ""))
        if field.partition(".")[0] in self.secrets:
            return f"{field}: {detail.get('code', 'refused')}"
        return message if not field or field in message else f"{field}: {message}"


def _says(text: str, detail: Detail) -> bool:
    """Whether a text has what a detail says of its field as a sentence."""
    return f"{detail.get('field', '')} {detail.get('message', '')}" in text


class Abort(RequestError):
    """Ends the request with the given status and code; raised by `ctx.abort(...)`."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: Sequence[Detail] | Detail | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, details, headers=headers)
        self.status = status
        self.code = code


class InvalidJson(RequestError):
    """The body is not well-formed JSON."""

    status, code, message = 400, "INVALID_JSON", "the body is not valid JSON"


class EmptyBody(RequestError):
    """A write came without a body."""

    status, code, message = 400, "EMPTY_BODY", "the request body is empty"


class InvalidBody(RequestError):
    """The body could not be read to its end."""

    status, code, message = 400, "BODY_READ_ERROR", "the request body could not be read"


class BodyTooSlow(InvalidBody):
    """The body arrived slowly while other large ones waited for its place."""

    status, message = 408, "the request body arrived too slowly; send it again"
    retryable = True


class InvalidQuery(RequestError):
    """A query parameter is unknown, malformed or not allowed."""

    status, code, message = 400, "INVALID_QUERY", "the query string is not valid"


class HistoryChanged(InvalidQuery):
    """The past cannot be asked this, because fields were changed since; `details` says how."""

    code, message = "HISTORY_CHANGED", "fields were changed since, so the past cannot be compared by them"


class CursorGone(InvalidQuery):
    """The feed cannot go on from this cursor: it is of another epoch, too old, or beyond the end."""

    message = "the feed of events cannot be continued from this cursor; begin anew"


class UnusableQuery(InvalidQuery):
    """Code of the application names a field, operator or function that is not there; the log says it."""

    status, code, message = 500, "INTERNAL", "the server failed to handle the request"


class InvalidSchedule(RequestError):
    """A schedule that cannot be kept; `details` names the field at fault."""

    status, code, message = 400, "INVALID_SCHEDULE", "the schedule is not valid"

    def __init__(self, field: str, problem: str) -> None:
        details: list[Detail] = [{"field": field, "message": problem}]
        super().__init__(f"{field}: {problem}", details)
        self.field = field


class Unauthorized(RequestError):
    """It is not known who is asking, and that matters here."""

    status, code, message = 401, "UNAUTHORIZED", "sign in first"


class Forbidden(RequestError):
    """The caller is known and may not do this."""

    status, code, message = 403, "FORBIDDEN", "this is not yours to do"


class OutOfScope(Forbidden):
    """A scope rule cannot tell which rows are the caller's, so none are."""


class RawSqlRefused(RequestError):
    """SQL of the application in code that scope rules bind, and could not; only the log says why."""

    message = "the server failed to handle the request"

    def __str__(self) -> str:
        return "scope rules cannot bind raw SQL; ctx.unscoped() says that it is meant for all rows"


class NotFound(RequestError):
    """There is no such record, or it is not the caller's to see."""

    status, code, message = 404, "NOT_FOUND", "record not found"


class MethodNotAllowed(RequestError):
    """The path exists, the method does not."""

    status, code, message = 405, "METHOD_NOT_ALLOWED", "method not allowed"


class Conflict(RequestError):
    """The write contradicts stored data."""

    status, code, message = 409, "CONFLICT", "the write conflicts with stored data"


class ConstraintViolation(Conflict):
    """A unique or check constraint refused the write; `columns` are its columns.

    `constraint` is its name where the database tells it: on PostgreSQL.
    """

    MISSING: ClassVar[str] = "a value that is required is missing"
    BROKEN_RULE: ClassVar[str] = "a value breaks a rule of the table"

    def __init__(
        self, table: str, columns: Sequence[str] = (), message: str | None = None, constraint: str = ""
    ) -> None:
        self.table = table
        self.columns = tuple(columns)
        self.constraint = constraint
        super().__init__(message or "a record with these values already exists")

    def _subject(self) -> str:
        return _place(self.table, self.columns)


class ForeignKeyViolation(Conflict):
    """A reference points at a row that does not exist, or a row is still referenced."""

    def __init__(self, table: str, columns: Sequence[str] = (), message: str | None = None) -> None:
        self.table = table
        self.columns = tuple(columns)
        super().__init__(message or "a referenced record does not exist or is still in use")

    def _subject(self) -> str:
        return _place(self.table, self.columns)


def _place(table: str, columns: Sequence[str]) -> str:
    return f"{table}: {', '.join(columns)}" if columns else table


class DeleteRestricted(Conflict):
    """Records that must not lose this one still refer to it; nothing was deleted."""

    code, message = "DELETE_RESTRICTED", "other records still refer to this one"


class SerializationFailure(Conflict):
    """Concurrent transactions collided; the same request may succeed when sent again."""

    message = "the write collided with a concurrent one; try again"
    retryable = True


class PreconditionFailed(RequestError):
    """If-Match names a version that is no longer current."""

    status, code, message = 412, "PRECONDITION_FAILED", "the record has changed since it was read"


class BodyTooLarge(RequestError):
    """The body is larger than the limit; nothing of it was used."""

    status, code, message = 413, "BODY_READ_ERROR", "the request body is too large"


class BatchTooLarge(RequestError):
    """A batch has more operations than the server takes; none of them ran."""

    status, code, message = 413, "BATCH_TOO_LARGE", "the batch has too many operations"


class UriTooLong(RequestError):
    """The query string is longer than the limit; nothing of it was read."""

    status, code, message = 414, "URI_TOO_LONG", "the query string is too long"


class AnswerTooLarge(RequestError):
    """The answer would be larger than the limit; it was not made."""

    status, code, message = 400, "ANSWER_TOO_LARGE", "the answer is too large; ask for fewer rows or fields"


class OwnAnswerTooLarge(AnswerTooLarge):
    """The application's own code answers with more than the limit; it can return less, or stream it."""

    status, message = 500, "the answer is larger than the server allows"


class InvalidFormat(RequestError):
    """An export was asked for in a format there is none of."""

    status, code, message = 400, "INVALID_FORMAT", "an export is csv, jsonl or xlsx"


class ExportTooLarge(RequestError):
    """More rows match than an export may have, or a value is larger than its format holds."""

    status, code, message = 413, "EXPORT_TOO_LARGE", "the export is too large"


class ExportBusy(RequestError):
    """As many exports run already as the server allows."""

    status, code, message = 503, "EXPORT_BUSY", "too many exports are running; try again later"
    retryable = True


class UnsupportedMediaType(RequestError):
    """The body's Content-Type is not one this route reads."""

    status, code, message = 415, "UNSUPPORTED_MEDIA_TYPE", "send the body as application/json"


class ValidationFailed(RequestError):
    """One or more fields break their rules; `details` lists them, of very many the first."""

    status, code = 422, "VALIDATION_FAILED"
    message = "one or more fields failed validation"


class MissingLocale(RequestError):
    """A text lacks translations that it needs; `details` names each of them."""

    status, code, message = 422, "MISSING_LOCALE", "a translation is missing"


class RecordLocked(RequestError):
    """The record is in a state that `lock_when` declares final."""

    status, code, message = 422, "RECORD_LOCKED", "the record is locked"


class CallbackFailed(RequestError):
    """A function that the application gave to a catalogue entry raised; the request is refused."""


class UnfilledField(RequestError):
    """A field that the server fills was empty when its record was to be stored; the log says which."""

    message = "the server failed to handle the request"


class UnusableScope(RequestError):
    """What a request is bound by (`ctx.query.force`) cannot be applied; only the log says why."""

    message = "the server failed to handle the request"


class DatabaseError(RequestError):
    """The database failed in a way no caller can mend."""

    status, code, message = 500, "DATABASE_ERROR", "the database could not complete the request"


class BackendError(RequestError):
    """The backend of a model failed or gave what it may not; only the log says what."""

    status, code, message = 502, "BACKEND_ERROR", "the service behind these records failed"

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class TransactionError(DatabaseError):
    """A transaction could not be begun or committed, or there is one or none where it must not be so."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Unavailable(RequestError):
    """The database or the file storage cannot be reached right now."""

    status, code, message = 503, "UNAVAILABLE", "the service is temporarily unavailable"
    retryable = True
    place: str = ""  # where it should be, for logs alone; never with a password

    def _subject(self) -> str:
        return self.place or super()._subject()


class Timeout(RequestError):
    """The deadline passed before the work was done."""

    status, code, message = 504, "TIMEOUT", "the request took too long"
    retryable = True

    def __init__(
        self,
        message: str | None = None,
        details: Sequence[Detail] | Detail | None = None,
        *,
        limit: str = "",
        **more: Any,
    ) -> None:
        super().__init__(message, details, **more)
        self.limit = limit  # the setting that was exceeded, for logs alone

    def _subject(self) -> str:
        return self.limit or super()._subject()


# Files: forms, keys, storages.


class FileNotFound(NotFound):
    """There is no file under this key."""

    code, message = "FILE_NOT_FOUND", "file not found"


class FileNotSet(NotFound):
    """The file field of the record is empty."""

    code, message = "FILE_NOT_SET", "the record has no file here"


class FileInUse(Conflict):
    """A record refers to the file, so it is not deleted or replaced."""

    code, message = "FILE_IN_USE", "a record refers to the file"


class FileGone(Conflict):
    """The file was given up as unused before the write that names it; upload it again."""

    message = "the file is being removed; upload it again"
    retryable = True


class MultipartError(RequestError):
    """A form is malformed, has too many parts or ends early."""

    status, code, message = 400, "MULTIPART_ERROR", "the form could not be read"


class NoFile(RequestError):
    """A form for the file route has no file."""

    status, code, message = 400, "NO_FILE", 'the form has no part "file"'


class MissingKey(RequestError):
    """The path of a file names no key."""

    status, code, message = 400, "MISSING_KEY", "the path names no file"


class FileTooLarge(RequestError):
    """A file has more bytes than its field takes."""

    status, code, message = 413, "FILE_TOO_LARGE", "the file is too large"


class FileTypeNotAllowed(RequestError):
    """A file is of a type that its field does not take, or its bytes are of another type than it says."""

    status, code, message = 415, "FILE_TYPE_NOT_ALLOWED", "files of this type are not allowed here"


class RangeNotSatisfiable(RequestError):
    """A range begins behind the end of the file."""

    status, code, message = 416, "RANGE_NOT_SATISFIABLE", "the file ends before the range begins"


class UnknownFile(RequestError):
    """A body names a file that there is none of."""

    status, code, message = 422, "FILE_NOT_FOUND", "there is no such file"


class TooManyFiles(RequestError):
    """A list names more files than its field takes."""

    status, code, message = 422, "TOO_MANY_FILES", "there are too many files"


class StorageError(RequestError):
    """The file storage failed in a way no caller can mend; `problem` says how, for logs alone."""

    status, code, message = 500, "STORAGE_ERROR", "the file storage could not complete the request"

    def __init__(self, problem: str = "") -> None:
        super().__init__()
        self.problem = problem

    def _subject(self) -> str:
        return self.problem


class InvalidKey(StorageError):
    """A storage key breaks the rules of `maniflex.storage.port`."""


class FileExists(StorageError):
    """A file is stored under this key already, and stored files are never overwritten."""


class StorageFull(StorageError):
    """The file storage, or the disk that uploads wait on, has no room left."""

    status, code, message = 507, "STORAGE_FULL", "the server has no room for the file"

    @staticmethod
    def is_meant(error: BaseException) -> bool:
        """Whether the system says that a disk is full, or a quota of it, or a limit of the process."""
        return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class NoStorage(RequestError):
    """The server has no file storage, so it takes no files."""

    status, code, message = 501, "NO_STORAGE", "the server has no file storage"


class PresignUnsupported(RequestError):
    """The file storage cannot sign URLs that a client may upload to."""

    status, code, message = 501, "PRESIGN_UNSUPPORTED", "the file storage cannot sign upload URLs"


class FileForbidden(Forbidden):
    """A body names a file that its caller may not read, or that another tenant or user uploaded."""

    code, message = "FILE_FORBIDDEN", "the file is not yours to use"


# Encrypted values: keys that lack, envelopes that do not open.


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
