"""Commands of `maniflex` inside the test's process: a tenth of what a process of their own costs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from maniflex.cli import main


class Commands:
    """The commands on the application `app.py` in a directory."""

    def __init__(self, here: Path, url: str, patch: pytest.MonkeyPatch) -> None:
        self.here, self.url = here, url
        patch.chdir(here)
        patch.setattr(sys, "path", [str(here), *sys.path])
        patch.setenv("DB_WRITE_URL", url)

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """All that the command prints, once it has ended with this code."""
        for name in {"app", *(name for name, module in sys.modules.items() if self._is_own(module))}:
            sys.modules.pop(name, None)  # every command imports the application anew
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == code, f"{result.output}\n{result.exc_info}"
        return result.output

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def _is_own(self, module: Any) -> bool:
        return str(getattr(module, "__file__", None) or "").startswith(f"{self.here}/")
