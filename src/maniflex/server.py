"""The application object; it lives in `maniflex.app.server`."""

from maniflex.app.server import Server

__all__ = ["Server"]
