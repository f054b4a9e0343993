"""The fuzzed application for a process of its own; the database comes from the environment."""

from __future__ import annotations

from maniflex import Config
from tests.fuzz.app import fuzzed_server

server = fuzzed_server(config=Config.from_env())
