"""What can go wrong with migrations, each said in one sentence with what to type."""

from __future__ import annotations

from maniflex.errors import DeclarationError


class MigrationError(DeclarationError):
    """A migration cannot be written or applied; the message says why and what to do."""


class Irreversible(MigrationError):
    """Raised by the `downgrade` of a file that cannot go back."""
