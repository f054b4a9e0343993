"""What files add to the routes of models; implemented by `maniflex.files`, which stands above."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from maniflex.db.store import Store
from maniflex.pipeline.operation import Operation

if TYPE_CHECKING:
    from maniflex.pipeline.chain import Default


class FileStepsPort(Protocol):
    """Steps of writes to models with file fields."""

    def after_validation(self, store: Store, operation: Operation, step: Default) -> Default:
        """The validate step of a write, and behind it what its files need; as it is without file fields."""

    def without_validation(self, store: Store, operation: Operation, step: Default | None) -> Default | None:
        """The step behind a validate step of the application's own."""
