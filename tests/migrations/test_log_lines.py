"""Migrations add no lines of their library to the log of a server."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = "import logging; logging.basicConfig(level='INFO'); import maniflex.schema.files"


def test_loading_the_migrations_is_silent_at_the_usual_level() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    assert run.stdout + run.stderr == ""
