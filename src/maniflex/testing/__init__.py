"""What tests of an application, and of an adapter, are written with."""

from maniflex.testing.client import client
from maniflex.testing.clock import FakeClock
from maniflex.testing.events import capture
from maniflex.testing.streams import sse, websocket

__all__ = ["FakeClock", "capture", "client", "sse", "websocket"]
