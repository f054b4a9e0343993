"""Shortcuts for tests that declare models."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import Server
from maniflex.errors import DeclarationError, ValidationFailed
from maniflex.model.base import Model
from maniflex.model.field import field
from maniflex.model.meta import ModelMeta
from maniflex.model.registry import Registry
from maniflex.model.validate import Validator


def sealed(*arguments: Any) -> dict[str, ModelMeta]:
    """The models of a registry, by name."""
    registry = Registry()
    registry.register(*arguments)
    return {meta.name: meta for meta in registry.seal()}


def meta_of(cls: type[Model], *options: Any) -> ModelMeta:
    return sealed(cls, *options)[cls.__name__]


def validator_of(cls: type[Model]) -> Validator:
    return meta_of(cls).validator


def problems_of(*arguments: Any) -> tuple[str, ...]:
    """What stops a registry of these from being sealed."""
    with pytest.raises(DeclarationError) as caught:
        sealed(*arguments)
    return caught.value.problems


def refusal_of(server: Server) -> DeclarationError:
    """What stops this server from being sealed."""
    with pytest.raises(DeclarationError) as caught:
        server.seal()
    return caught.value


def option(**options: Any) -> Any:
    """`field(...)` for options that a type checker would refuse."""
    return field(**options)


def details_of(caught: pytest.ExceptionInfo[ValidationFailed]) -> dict[str, str]:
    """Field → code."""
    assert isinstance(caught.value.details, list)
    return {detail["field"]: detail["code"] for detail in caught.value.details}


def messages_of(caught: pytest.ExceptionInfo[ValidationFailed]) -> list[str]:
    assert isinstance(caught.value.details, list)
    return [detail["message"] for detail in caught.value.details]
