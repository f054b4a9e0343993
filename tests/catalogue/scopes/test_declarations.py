"""Mistakes in scope rules stop the start, all in one message (X3, X8, D8 to D10)."""

from __future__ import annotations

from typing import Any

import pytest

from maniflex import DeclarationError, Model, field
from maniflex.middleware import auth, db
from tests.catalogue.scopes.world import Currency, Org, Project, Task, make_server, org_of

MISTAKES: list[tuple[Any, dict[str, Any], str]] = [
    (db.tenancy("orgid"), {}, "no model has a field 'orgid'"),
    (db.tenancy("orgid"), {"models": [Project]}, "Project has no field 'orgid'; did you mean 'org_id'?"),
    (db.tenancy("org_id"), {"models": [Project, Currency]}, "Currency has no field 'org_id'"),
    (db.tenancy("org_id", shared=["Curency"]), {}, "no model named 'Curency'"),
    (db.tenancy("org_id", shared=[Project]), {"models": [Project]}, "bound or shared, not both"),
    (db.tenancy("org_id", tenant="org-a"), {}, "tenant is a function"),  # type: ignore[arg-type]
    (db.tenancy(""), {}, "a field is named by a text"),
    (db.tenancy("org_id", unless_role=""), {}, "unless_role is the name of a role"),
    (db.force_filter("org_id", org_of, "is"), {}, "there is no operator 'is'"),
    (db.force_filter("org_id", "name", "eq_field"), {}, "compares two fields"),
    (db.force_filter("rank", "abc"), {"models": [Project]}, "cannot be bound by 'rank'"),
    (db.force_filter("rank", org_of, "contains"), {"models": [Project]}, "contains does not work on 'rank'"),
    (db.force_filter("org_id", None), {}, "the value is empty"),
    (db.force_filter("org_id", [], "in"), {}, "the value is empty"),
    (db.force_filter("project.org_id", org_of), {}, "db.force_filter_via binds through a parent"),
    (db.force_filter_via("projekt", "org_id", org_of), {"models": [Task]}, "did you mean 'project'"),
    (db.force_filter_via("projects", "org_id", org_of), {"models": [Org]}, "leads to many records"),
    (db.force_filter_via("project", "orgid", org_of), {"models": [Task]}, "Project has no field 'orgid'"),
    (db.force_filter_via("nothing", "org_id", org_of), {}, "no model has a relation 'nothing'"),
    (auth.require_owner("owner_idd"), {"models": [Project]}, "did you mean 'owner_id'?"),
    (auth.require_owner("owner_id", lists="no"), {"models": [Project]}, "lists is True or False"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("rule", "options", "problem"), MISTAKES)
def test_a_mistake_stops_the_start(rule: Any, options: dict[str, Any], problem: str) -> None:
    server = make_server(lambda s: s.pipeline.auth.register(rule, **options))
    with pytest.raises(DeclarationError) as refused:
        server.seal()
    assert problem in str(refused.value)


def test_all_mistakes_come_in_one_message() -> None:
    def rules(server: Any) -> None:
        for rule, options, _ in MISTAKES:
            server.pipeline.auth.register(rule, **options)

    with pytest.raises(DeclarationError) as refused:
        make_server(rules).seal()
    missing = [problem for _, _, problem in MISTAKES if problem not in str(refused.value)]
    assert not missing


@pytest.mark.parametrize("step", ["deserialize", "validate", "service", "response"])
def test_another_step_stops_the_start(step: str) -> None:
    server = make_server(lambda s: getattr(s.pipeline, step).register(db.tenancy("org_id")))
    with pytest.raises(DeclarationError, match=r"register it on pipeline\.auth or pipeline\.db"):
        server.seal()


def test_an_owner_means_nothing_in_an_action() -> None:
    server = make_server()
    server.action("GET", "/x", middleware=[auth.require_owner("owner_id")])(lambda ctx: None)
    with pytest.raises(DeclarationError, match="means nothing without a model"):
        server.seal()


class Folder(Model, database="sqlite:///:memory:?other"):
    org_id: str = field(relation=None)


class Paper(Model):
    folder_id: str


def test_a_parent_in_another_database_stops_the_start() -> None:
    server = make_server(models=[Folder, Paper])
    server.pipeline.auth.register(db.force_filter_via("folder", "org_id", org_of), models=[Paper])
    with pytest.raises(DeclarationError, match="Folder lives in another database than Paper"):
        server.seal()


def test_a_server_without_rules_has_an_empty_table() -> None:
    server = make_server()
    assert not server._seal().runtime.rules.scoped_models
