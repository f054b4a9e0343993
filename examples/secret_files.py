"""Secrets of the examples: made on the first start, kept in files that only their owner can read."""

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path


def secret_in(path: Path, size: int = 32) -> str:
    """The text in the file; where there is no file yet, one is made of that many random bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        descriptor, draft = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(size))
        with suppress(FileExistsError):
            os.link(draft, path)  # of several processes that start at once, one makes it and all read it
        os.unlink(draft)
    return path.read_text()
