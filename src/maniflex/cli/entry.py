"""The program `maniflex`: the command line as a process of its own."""

from __future__ import annotations

from maniflex.cli import main
from maniflex.cli.process import end_process


def run_program() -> None:
    """Run one command, and end with its exit code also when something still runs on a thread."""
    try:
        main()
    except SystemExit as stop:  # click ends every command in this way
        end_process(stop)
