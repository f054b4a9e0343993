"""URLs that lead to this server, where it is mounted below a path of another application."""

from __future__ import annotations

from maniflex.pipeline.context import Context


def below_root(ctx: Context, url: str) -> str:
    """A URL as this caller reaches it: one that leads here begins where this server is mounted."""
    is_path = url.startswith("/") and not url.startswith("//")
    return f"{ctx.scope.get('root_path') or ''}{url}" if is_path else url
