"""What becomes of obstore's exceptions: `FileNotFound`, `FileExists`, `Unavailable`, or `StorageError`.

Their texts are kept for logs without what follows a question mark in a URL, where signatures are, and the
exceptions themselves are not kept as causes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from maniflex.errors import FileExists, FileNotFound, StorageError, Unavailable

_QUERY = re.compile(r"\?[^\s\"'<>)]*")
# The request was understood and is our mistake: another attempt would end in the same way.
_REFUSED = re.compile(r"status code: 4(?!08|29)\d\d|Wanted range")
_LONGEST = 300


class ObjectErrors:
    """Translates what is raised in its blocks; `place` says where the files are, for logs."""

    def __init__(self, place: str) -> None:
        self._place = place

    @asynccontextmanager
    async def translate(
        self, doing: str, *, within: float | None = None, storing: bool = False
    ) -> AsyncIterator[None]:
        """Give it up after `within` seconds. What is not found while `storing` is the bucket."""
        from obstore import exceptions

        try:
            async with asyncio.timeout(within):
                yield
        except FileNotFoundError:
            raise StorageError(f"{self._place} does not exist") if storing else FileNotFound() from None
        except TimeoutError:
            raise self.unavailable(f"no answer in {within:g} s while {doing}") from None
        except exceptions.AlreadyExistsError:
            raise FileExists(f"{self._place}: stored already") from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise StorageError(f"{self._place}: not allowed while {doing}: {error_text(error)}") from None
        except exceptions.BaseError as error:
            text = error_text(error)
            if isinstance(error, exceptions.GenericError) and not _REFUSED.search(text):
                raise self.unavailable(f"{doing}: {text}") from None
            raise StorageError(f"{self._place}: {doing}: {text}") from None

    def unavailable(self, problem: str) -> Unavailable:
        error = Unavailable("the file storage is temporarily unavailable")
        error.place = f"{self._place}: {problem}"
        return error


def error_text(error: BaseException) -> str:
    """The first paragraph of an exception's text, without the queries of URLs."""
    return _QUERY.sub("?…", str(error).partition("\n\n")[0])[:_LONGEST]
