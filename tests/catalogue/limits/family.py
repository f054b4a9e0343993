"""Two models that reach each other."""

from __future__ import annotations

from maniflex import Model, belongs_to, field, has_many


class Parent(Model, table="parents"):
    name: str = ""
    children: list[Child] = has_many()


class Child(Model, table="children"):
    parent_id: str | None = field(default=None)
    parent: Parent | None = belongs_to()
