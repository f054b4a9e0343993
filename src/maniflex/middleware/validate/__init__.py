"""Validate entries: rules for the values of a write beyond those of its fields, and who may write a field.

from maniflex.middleware import validate

server.pipeline.validate.register(validate.date_range("starts_on", "ends_on"), models=[Event])
"""

from maniflex._callables import explain_section
from maniflex.middleware.validate.row_rules import (
    cross_field,
    date_range,
    exists,
    require_at_least_one,
    require_when,
    unique_field,
)
from maniflex.middleware.validate.rule_entry import (
    field_role,
    forbidden_values,
    numeric_precision,
    regex_field,
    require_locale,
    restrict_field,
)

__all__ = [
    "cross_field",
    "date_range",
    "exists",
    "field_role",
    "forbidden_values",
    "numeric_precision",
    "regex_field",
    "require_at_least_one",
    "require_locale",
    "require_when",
    "restrict_field",
    "unique_field",
]

explain_section(globals(), "validate", __all__)
