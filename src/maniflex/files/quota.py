"""`file_quota`: how many bytes the files of one caller may have in all.

The sum is that of the files whose keys the caller minted and that are not given up. A presigned upload
holds the bytes that its URL lets through until the object is seen. Uploads that run side by side are looked
at again once they are stored, so that together they do not pass it either.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from maniflex.errors import FileTooLarge, ManiflexError, StorageError
from maniflex.files.owner import Owner
from maniflex.files.store import FileStore


class FileQuota:
    """Asks the hook of the settings; without one there is always room."""

    def __init__(
        self,
        ask: Callable[..., Any] | None,
        rows: Callable[[], FileStore],
        see_uploads: Callable[[Owner], Awaitable[None]],
    ) -> None:
        self._ask = ask
        self._rows = rows
        self._see_uploads = see_uploads  # presigned ones: what came may have fewer bytes than it holds

    async def room(self, owner: Owner) -> int | None:
        """The bytes that further files of this caller may have; None where there is no limit."""
        most = await self._most(owner)
        return None if most is None else max(most - await self._rows().used_bytes(owner.scope), 0)

    async def require_room(self, owner: Owner, size: int) -> int | None:
        """The same, if a file of this size would fit; `FileTooLarge` otherwise."""
        room = await self.room(owner)
        if room is not None and _is_short(room, size):
            await self._see_uploads(owner)
            room = await self.room(owner)
            if room is not None and _is_short(room, size):
                raise no_room()
        return room

    async def is_passed(self, owner: Owner) -> bool:
        """Whether the files of this caller have more than they may."""
        most = await self._most(owner)
        return most is not None and await self._rows().used_bytes(owner.scope) > most

    async def _most(self, owner: Owner) -> int | None:
        if self._ask is None:
            return None
        try:
            outcome = self._ask(owner.name)
            most = await outcome if inspect.isawaitable(outcome) else outcome
        except ManiflexError:
            raise
        except Exception as error:
            raise StorageError(f"file_quota raised {type(error).__name__}") from error
        if most is not None and (not isinstance(most, int) or isinstance(most, bool)):
            raise StorageError(f"file_quota gave {type(most).__name__}, which is no number of bytes")
        return most


def _is_short(room: int, size: int) -> bool:
    return size > room or room == 0


def no_room() -> FileTooLarge:
    """The refusal of a file for which there is no room."""
    return FileTooLarge("there is no room for this file: your files have as many bytes as they may")
