"""Rows of a tenant that others may see: models without a rule, wide uniqueness (T111 to T113)."""

from __future__ import annotations

from collections.abc import Iterator

from maniflex.doctor.check import DeclarationCheck, Problem, Severity
from maniflex.doctor.sources import where_of
from maniflex.doctor.subject import Subject
from maniflex.middleware.db.scopes import TenantRule
from maniflex.model.meta import ModelMeta, RelationKind
from maniflex.pipeline.rules.scopes import ScopeRule, unique_among_all


def unbound_models(subject: Subject) -> Iterator[Problem]:
    """Models with the column that others are bound by."""
    for rule, meta in _left_out(subject):
        if rule.path in meta.by_name:
            yield Problem(
                where=where_of(meta.cls),
                why=f"it has {rule.path!r}, by which other models are bound to the caller's tenant, and is"
                " not bound itself: every tenant sees the rows of all",
                fix=f"add {meta.name} to models= of {rule.name}, or to its shared= if all tenants have it"
                " in common",
                about=(meta.name,),
            )


def unbound_children(subject: Subject) -> Iterator[Problem]:
    """Models whose rows belong to rows of a tenant, and that have no tenant of their own."""
    bound_names = {meta.name for rule, meta in _bound_pairs(subject) if isinstance(rule, TenantRule)}
    for rule, meta in _left_out(subject):
        parents = [r for r in meta.relations.values() if r.kind is RelationKind.BELONGS_TO]
        parent = next((relation for relation in parents if relation.target in bound_names), None)
        if parent is not None and rule.path not in meta.by_name and not meta.options.headless:
            yield Problem(
                where=where_of(meta.cls),
                why=f"its rows belong to {parent.target}, which is bound to the caller's tenant, and are not"
                " bound themselves: every tenant sees the rows of all",
                fix=f'server.pipeline.auth.register(db.force_filter_via("{parent.name}", "{rule.path}",'
                f" lambda ctx: ctx.require_auth().tenant_id), models=[{meta.name}]), or {meta.name} in"
                f" shared= of {rule.name}",
                about=(meta.name,),
            )


def _bound_pairs(subject: Subject) -> Iterator[tuple[ScopeRule, ModelMeta]]:
    for entry, seat in subject.placement.seats:
        if isinstance(entry, ScopeRule):
            for meta in entry.bound_models(seat):
                yield entry, meta


def _left_out(subject: Subject) -> Iterator[tuple[TenantRule, ModelMeta]]:
    """The models that no rule binds where another is bound to a tenant, each with the rule that could."""
    bound_names = {meta.name for _, meta in _bound_pairs(subject)}
    rules = [entry for entry, _ in subject.placement.seats if isinstance(entry, TenantRule)]
    for meta in subject.own_models:
        if meta.name not in bound_names and rules and all(rule.may_bind(meta) for rule in rules):
            yield rules[0], meta


def unique_across_tenants(subject: Subject) -> Iterator[Problem]:
    for rule, meta, field in unique_among_all(subject.placement):
        if isinstance(rule, TenantRule):
            yield Problem(
                where=where_of(meta.cls, field.name),
                why="it is unique among the rows of all tenants, so a refusal tells one what another has",
                fix=f'{field.name}: ... = field(unique="{rule.path}")',
                about=(meta.name, f"{meta.name}.{field.name}"),
            )


CHECKS = (
    DeclarationCheck(
        "T111",
        Severity.ERROR,
        "a model with the tenant's column that is not bound while others are",
        unbound_models,
    ),
    DeclarationCheck(
        "T112",
        Severity.ERROR,
        "a model that belongs to one bound to a tenant, and is not bound itself",
        unbound_children,
    ),
    DeclarationCheck(
        "T113",
        Severity.WARNING,
        "a field of a model bound to a tenant that is unique across all tenants",
        unique_across_tenants,
    ),
)
