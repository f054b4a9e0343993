"""The page of the architecture names what there is: every package, and only files that exist."""

from __future__ import annotations

import re

import pytest

from tests.kit.processes import ROOT

PAGE = (ROOT / "docs" / "contribute" / "architecture.md").read_text()
SOURCE = ROOT / "src" / "maniflex"
FILES = sorted(set(re.findall(r"`([\w./]+\.py)`", PAGE)))
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "errors"])
def test_every_package_has_its_place_in_the_layers(package: str) -> None:
    layers = PAGE.split("```")[1]

    assert re.search(rf"^(?:\w+ )*{package}\b", layers, re.MULTILINE), package


@pytest.mark.parametrize("file", FILES)
def test_every_file_that_is_named_exists(file: str) -> None:
    assert (SOURCE / file).is_file() or (ROOT / file).is_file()


@pytest.mark.parametrize("question", ["models", "problems", "routes", "replace_routes"])
def test_the_questions_that_a_feature_answers_are_those_of_the_code(question: str) -> None:
    assert re.search(rf"^    def {question}\(", (SOURCE / "app" / "features.py").read_text(), re.MULTILINE)
    assert f"| `{question}(" in PAGE
