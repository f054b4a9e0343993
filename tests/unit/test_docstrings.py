"""What classes say of their fields, wherever the classes came from."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from maniflex.model import class_body
from maniflex.model.class_body import field_texts

MODELS = '''
from typing import Annotated, Generic, TypeVar
from pydantic import Field
from maniflex import Model, field

class Placed:
    where: str = "x"
    """Where it stands."""

class Named(Model, abstract=True):
    name: str = field(default="")
    """What it is called."""
    note: str = field(default="")
    """Of the base."""

class Tea(Placed, Named):
    note: str = field(default="")
    """Of the class."""
    grams: Annotated[int, Field(description="By the tin.")] = 50
    bare: int = 0

def make():
    class Inner(Named):
        code: str = ""
        """Printed on the tin."""
    return Inner
'''
TEXTS = {
    "where": "Where it stands.",
    "name": "What it is called.",
    "note": "Of the class.",
    "grams": "By the tin.",
}


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The places that modules are imported from, as they were when the test ends."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield sys.path
    for name in [name for name in sys.modules if name.startswith("tea_models_")]:
        del sys.modules[name]


def import_models(name: str) -> Any:
    importlib.invalidate_caches()
    return importlib.import_module(name)


def test_a_class_says_what_its_bases_and_mixins_say(path: list[str], tmp_path: Path) -> None:
    (tmp_path / "tea_models_file.py").write_text(MODELS)
    path.insert(0, str(tmp_path))
    models = import_models("tea_models_file")
    assert field_texts(models.Tea) == TEXTS
    inner = {"name": "What it is called.", "note": "Of the base.", "code": "Printed on the tin."}
    assert field_texts(models.make()) == inner


def test_a_class_in_an_archive_says_the_same(path: list[str], tmp_path: Path) -> None:
    with ZipFile(tmp_path / "models.zip", "w") as archive:
        archive.writestr("tea_models_zip.py", MODELS)
    path.insert(0, str(tmp_path / "models.zip"))
    assert field_texts(import_models("tea_models_zip").Tea) == TEXTS


def test_a_class_without_a_source_says_what_its_annotations_say() -> None:
    names: dict[str, Any] = {"__name__": "tea_models_typed"}
    exec(compile(MODELS, "<cell>", "exec", dont_inherit=True), names)  # as a notebook does
    assert field_texts(names["Tea"]) == {"grams": "By the tin."}


def test_no_source_is_read_before_somebody_asks_and_none_twice(path: list[str], tmp_path: Path) -> None:
    (tmp_path / "tea_models_read.py").write_text(MODELS)
    path.insert(0, str(tmp_path))
    before = class_body._texts_in.cache_info().misses
    models = import_models("tea_models_read")
    assert class_body._texts_in.cache_info().misses == before
    for cls in (models.Tea, models.make(), models.Named):
        field_texts(cls)
    # Its own file, and that of `Model` unless another test asked before; none of pydantic or the library.
    assert class_body._texts_in.cache_info().misses - before <= 2
