"""The test files that run on SQLite alone, unless `--both` or `--long` is given.

They are about middleware, routes, pages, texts and declarations. On PostgreSQL they reach no line of
`src/` that they do not reach on SQLite, but for statements of PostgreSQL, which the tests of queries,
records, durable work and adapters reach. What is about SQL, transactions, locks, types of columns, tenants,
policies or secrets runs on both databases, and so does a file that is not named here.
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]

_NAMES = {
    "admin": "bulk_values entry every_form field_hints files forms history inlines languages lists messages"
    " nested operations operations_access operations_many operations_parts people_identity records"
    " statement_log transfer_actions transfer_attacks transfer_import transfer_picker",
    "audit": "actions",
    "catalogue/auth": "api_keys csrf jwks jwt other_credentials together verify",
    "catalogue/body": "body",
    "catalogue/described": "codes own_codes",
    "catalogue/http": "client_address layers observers",
    "catalogue/limits": "paginate rate_limit rate_limit_field",
    "catalogue/response": "bodies cache cors headers request_observers",
    "catalogue/service": "service",
    "catalogue/validate": "rules",
    "http": "access_log actions binding bodies body_room bound_types call computed context control_jobs"
    " error_texts execute export export_cells filled_fields floods let_go loose_ends outbox_api panics"
    " payloads_of_clients pipeline protocol run_steps runs_access runs_api runs_apart served_operations"
    " switches sync_middleware typed_context unanswered",
    "observability": "background_panics log_lines server_timing thousand_requests",
    "openapi": "schemathesis serving ways",
}
ON_SQLITE_ALONE = frozenset(
    TESTS / directory / f"test_{name}.py" for directory, names in _NAMES.items() for name in names.split()
)
