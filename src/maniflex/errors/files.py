"""What can go wrong with files: forms, keys, storages."""

from __future__ import annotations

import errno

from maniflex.errors import Conflict, Forbidden, NotFound, RequestError

__all__ = [
    "FileExists",
    "FileForbidden",
    "FileGone",
    "FileInUse",
    "FileNotFound",
    "FileNotSet",
    "FileTooLarge",
    "FileTypeNotAllowed",
    "InvalidKey",
    "MissingKey",
    "MultipartError",
    "NoFile",
    "NoStorage",
    "PresignUnsupported",
    "RangeNotSatisfiable",
    "StorageError",
    "StorageFull",
    "TooManyFiles",
    "UnknownFile",
]


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
