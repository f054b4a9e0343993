"""Style sheet, module and icon, under names with their digest, so that browsers keep them for good."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from maniflex.admin.layout import SECURITY_HEADERS
from maniflex.errors import NotFound
from maniflex.pipeline.response import Response

STYLE, MODULE, ICON = "panel.css", "panel.js", "panel.svg"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
_FOREVER = "public, max-age=31536000, immutable"


class Assets:
    """The files below `static/`: ours, and those of the application in front of them.

    The module begins with `panelTexts`, the words of this panel that it shows.
    """

    def __init__(self, own: str | Path | None, texts: Mapping[str, str]) -> None:
        contents = {
            name: (files("maniflex.admin") / "assets" / name).read_bytes() for name in (STYLE, MODULE, ICON)
        }
        if own is not None:
            contents |= {p.name: p.read_bytes() for p in sorted(Path(own).iterdir()) if p.is_file()}
        # Not a name of the module: one of the application may have it, too.
        contents[MODULE] = f"globalThis.panelTexts = {json.dumps(dict(texts))};\n".encode() + contents[MODULE]
        self._plain = contents
        self._hashed = {hashed_name(name, content): name for name, content in contents.items()}
        names = {name: digest_name for digest_name, name in self._hashed.items()}
        self.style, self.module, self.icon = names[STYLE], names[MODULE], names[ICON]

    def serve(self, name: str) -> Response:
        """The file; one that is asked for by its digest may be kept."""
        plain = self._hashed.get(name, name)
        content = self._plain.get(plain)
        kind = _TYPES.get(Path(plain).suffix.lower())
        if content is None or kind is None:
            raise NotFound("no such file")
        caching = _FOREVER if name in self._hashed else "no-cache"
        return Response(
            200, body=content, content_type=kind, headers={**SECURITY_HEADERS, "cache-control": caching}
        )


def hashed_name(name: str, content: bytes) -> str:
    """`panel.css` → `panel.1f2e3d4c.css`."""
    path = Path(name)
    return f"{path.stem}.{sha256(content).hexdigest()[:12]}{path.suffix}"
