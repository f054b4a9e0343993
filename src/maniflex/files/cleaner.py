"""Removes files that were given up: first the object, then its row.

A file is leased before its object is touched, so several processes may clean at once, and one that is killed
anywhere leaves a row by which the next goes on. What cannot be removed is tried again, later and later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from maniflex._clock import Backoff
from maniflex._ids import new_id
from maniflex.background.loop import Loop
from maniflex.errors import FileNotFound
from maniflex.files.desk import FileDesk
from maniflex.files.store import ClaimedFile

AT_ONCE = 8  # files that are leased and removed together
LEASE = timedelta(seconds=90)  # so long they wait for the next cleaner, if a process is killed meanwhile
PATIENCE = 60.0  # seconds for one object: less than the lease, behind which the key may be another file's
BACKOFF = Backoff(base=timedelta(seconds=5), cap=timedelta(hours=1))


@dataclass(slots=True)
class CleanReport:
    """What one sweep came to."""

    removed: int = 0
    failed: int = 0
    temporaries: int = 0  # of uploads that were killed


class Cleaner(Loop):
    """Cleans every `sweep_interval`, and at once when this process gives up a file."""

    name = "maniflex-files"

    def __init__(self, desk: FileDesk) -> None:
        super().__init__(desk.clock, desk.config.sweep_interval, desk.logger)
        self._desk = desk

    async def tick(self) -> bool:
        """Remove one batch; True while there may be more."""
        report = CleanReport()
        is_full = await self._clean_batch(report)
        if not is_full:
            await self._desk.look_at_uploads()
            await self._remove_temporaries(report)
        return is_full

    async def sweep(self) -> CleanReport:
        """Remove everything that can be removed now."""
        report = CleanReport()
        if self._desk.has_storage:
            await self._desk.look_at_uploads()
        while await self._clean_batch(report):
            pass
        await self._remove_temporaries(report)
        return report

    async def _clean_batch(self, report: CleanReport) -> bool:
        desk = self._desk
        await desk.condemn_left()
        now = desk.clock.now()
        if not desk.has_storage or not await desk.rows.is_due(now):
            return False
        lease = new_id()
        files = await desk.rows.claim(lease, until=now + LEASE, now=now, limit=AT_ONCE)
        outcomes = await asyncio.gather(*(self._remove(file, lease) for file in files))
        report.removed += sum(outcomes)
        report.failed += len(outcomes) - sum(outcomes)
        return len(files) == AT_ONCE

    async def _remove(self, file: ClaimedFile, lease: str) -> bool:
        desk = self._desk
        try:
            async with asyncio.timeout(PATIENCE):
                await desk.storage.delete(file.key)
        except FileNotFound:
            pass
        except Exception as error:
            if file.attempts == 0:  # once for each file: a storage that is away would fill the log
                desk.logger.warning("a file could not be removed; it is tried again: %s", error)
            now = desk.clock.now()
            retry_at = now + BACKOFF(file.attempts + 1)
            await desk.rows.put_back(file.key, lease, retry_at=retry_at, now=now)
            return False
        now = desk.clock.now()
        if file.open_until is not None and file.open_until > now:
            await desk.rows.keep_until(file.key, lease, until=file.open_until, now=now)
        else:
            await desk.rows.remove(file.key, lease)
        return True

    async def _remove_temporaries(self, report: CleanReport) -> None:
        """Remove what killed uploads left beside the objects, where the storage keeps any."""
        remove = (
            getattr(self._desk.storage, "remove_stale_temporaries", None) if self._desk.has_storage else None
        )
        if remove is not None:
            # An upload that moves is younger, or its row would have expired.
            report.temporaries += await remove(self._desk.config.files_pending_ttl + timedelta(days=1))
