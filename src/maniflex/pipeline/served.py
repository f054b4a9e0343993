"""The class keyword `operations=`: which routes of a model there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from maniflex._names import did_you_mean
from maniflex.db.backend import has_method
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.operation import Operation, covered


def serves(model: ModelMeta, operation: Operation, *, item: bool) -> bool:
    """Whether the model has routes for the operation, on one record (`item`) or on many."""
    if operation in Operation.WRITES and not keeps(model, operation):
        return False
    if model.options.operations is None:
        return True
    names = {str(name) for name in _names(model.options.operations)}
    operations = frozenset(o for o in Operation if o in names)
    if operation is Operation.READ_HISTORY and not item and Operation.LIST not in operations:
        return operation in operations  # whose records are read one by one has no list of their histories
    return covered(operations, operation, item=item)


def keeps(model: ModelMeta, operation: Operation) -> bool:
    """Whether a write can be done at all: a query model has none, and a backend those of its methods."""
    if model.options.backend is not None:
        return has_method(model.options.backend, operation)
    return model.options.query is None


def operation_problems(model: ModelMeta) -> Iterator[str]:
    """What cannot be meant by a model's `operations=`."""
    operations: Any = model.options.operations
    if operations is None:
        return
    operation_names = [operation.value for operation in Operation]
    names = _names(operations)
    if not names:
        yield f"{model.name}: operations is empty; headless=True makes a model without routes"
    for name in names:
        if str(name) not in operation_names:
            hint = did_you_mean(str(name), operation_names) or f"; there are: {', '.join(operation_names)}"
            yield f"{model.name}: operations: there is no operation {name!r}{hint}"


def _names(operations: Any) -> list[Any]:
    return [operations] if isinstance(operations, str) else list(operations)
