"""PostgreSQL: the adapter, its pool and connections."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maniflex.db.postgres.adapter import PostgresAdapter

__all__ = ["PostgresAdapter"]


def __getattr__(name: str) -> Any:
    """Import the adapter when it is asked for: parts of this package work without its driver."""
    if name != "PostgresAdapter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from maniflex.db.postgres.adapter import PostgresAdapter

    return PostgresAdapter
