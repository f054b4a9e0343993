"""What users type stays: names, addresses, routes, codes, tables, columns, settings and commands."""

from __future__ import annotations

from pathlib import Path

from tests.kit.public_surface import surface

KEPT = Path(__file__).with_name("public_surface.txt")


def test_nothing_that_users_rely_on_is_gone() -> None:
    gone = sorted(set(KEPT.read_text().splitlines()) - set(surface()))

    assert not gone, "remove what is meant to go from tests/public_surface.txt: " + "; ".join(gone)
