"""How far a command has come, shown to people and not to pipes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self


class Progress:
    """A bar on the terminal, with rich where it is installed; silent everywhere else."""

    def __init__(self, what: str, total: int | None = None, *, shown: bool | None = None) -> None:
        self._what = what
        self._total = total or None
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._bar: Any = None
        self._task: Any = None
        self._done = 0

    @property
    def shown(self) -> bool:
        return self._shown

    def __enter__(self) -> Self:
        if self._shown:
            self._bar = _rich_bar()
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=self._total)
        return self

    def to(self, count: int) -> None:
        """Show that `count` are done in all."""
        self._done = count
        if self._bar is not None:
            self._bar.update(self._task, completed=count, total=self._larger_total(count))
        elif self._shown:
            of = f" of {self._larger_total(count)}" if self._total else ""
            print(f"\r{self._what}: {count}{of}", end="", file=sys.stderr, flush=True)

    def after(self, before: int) -> Callable[[int], None]:
        """A `to` for a caller that counts from zero."""
        return lambda done: self.to(before + done)

    def one_more(self) -> None:
        self.to(self._done + 1)

    def _larger_total(self, count: int) -> int | None:
        """The total, or `count` when more came up since the total was taken."""
        return None if self._total is None else max(self._total, count)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._shown:
            print(file=sys.stderr)


def _rich_bar() -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Bar(*columns, console=Console(stderr=True))
