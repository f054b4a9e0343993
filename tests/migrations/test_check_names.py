"""R4: CHECKs are compared by their names, so one whose condition changes needs another name.

Applications declare none. Of these, `migrate make` and the start see only whether the name is there: a
state that is added under the old name would be refused by every database that exists.
"""

from __future__ import annotations

import pytest

from maniflex import Model
from maniflex.background.outbox.model import OutboxMessage
from maniflex.background.runs.model import WorkflowRun
from maniflex.files.store import StoredFile
from maniflex.model.meta import TableRules, is_one_of


@pytest.mark.parametrize(
    ("model", "name", "column", "values"),
    [
        (OutboxMessage, "outbox_event_status_check", "status", "pending delivered dead"),
        (WorkflowRun, "workflow_run_status_check", "status", "pending leased succeeded failed cancelled"),
        (StoredFile, "stored_file_state_check", "state", "pending stored linked condemned"),
    ],
)
def test_the_condition_under_a_name_stays_what_it_was(
    model: type[Model], name: str, column: str, values: str
) -> None:
    rules: TableRules = model.__table_rules__  # type: ignore[attr-defined]  # these three have them

    assert dict(rules.checks) == {name: is_one_of(column, values.split())}, f"{name} needs another name"
