"""The page of the architecture names what there is: every package, and only files that exist."""

from __future__ import annotations

import re
from inspect import isfunction

import pytest

from maniflex.app.features import FEATURES, Feature
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


def test_the_questions_of_the_page_are_those_that_features_answer() -> None:
    questions = [name for name, value in vars(Feature).items() if isfunction(value) and name[0] != "_"]
    assert sorted(re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE)) == sorted(questions)


def test_the_page_names_every_capability_in_the_order_of_the_list() -> None:
    names = [type(feature).__name__ for feature in FEATURES]
    sentence = PAGE.split("`FEATURES` in `app/features.py`: ")[1].partition(". ")[0]

    assert re.findall(r"`(\w+)`", sentence) == names
