"""The commands of an example's README, typed into one shell."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.kit.processes import IMPORTS, MANIFLEX

_ADDRESS = "http://localhost:8080"  # as the pages have it
_END = "-- end of answer --"


@dataclass(frozen=True)
class Typed:
    """A curl line, the status it should have, the one it had and what was answered."""

    line: str
    expected: int
    status: int
    body: str

    def __str__(self) -> str:
        return f"{self.line}\n  is {self.status}: {self.body}"


def commands(page: Path, section: str) -> list[str]:
    """The commands of a section, those that go on in the next line as one."""
    text = page.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    consoles = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
    lines = [line.strip() for console in consoles for line in re.split(r"^\$ ", console, flags=re.MULTILINE)]
    return [line for line in lines if line]


def type_all(page: Path, section: str, url: str, directory: Path, **environment: str) -> list[Typed]:
    """Type every command of a section into one shell that is in `directory`; what curl answered."""
    curls, script = [], ["set -eu"]
    for command in commands(page, section):
        here = command.replace(_ADDRESS, url).replace(".venv/bin/python", sys.executable)
        if not command.startswith("curl"):
            script.append(here)
            continue
        line, expected = here.rsplit("  # ", 1)
        curls.append((line, int(expected[:3])))
        script.append(f"{line} -sS -w '\\n%{{http_code}}\\n{_END}\\n'")
    search_path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=directory,
        env={"PATH": search_path, "PYTHONPATH": IMPORTS, **environment},
        capture_output=True,
        text=True,
        timeout=280,  # mypy without a cache takes minutes where others want the processors too
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stderr == ""
    answers = [answer.rstrip("\n").rpartition("\n") for answer in done.stdout.split(_END)[: len(curls)]]
    return [
        Typed(line, expected, int(status), body.strip())
        for (line, expected), (body, _, status) in zip(curls, answers, strict=True)
    ]


def example_command(name: str, port: int, *options: str) -> list[str | Path]:
    """`maniflex run` of an example."""
    return [MANIFLEX, "run", f"examples.{name}.app:server", "--port", str(port), *options]
