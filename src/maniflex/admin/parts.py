"""What a panel is made of, as its pages know it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from maniflex.admin.action_forms import ActionForms
from maniflex.admin.audit import Trail
from maniflex.admin.call import PrivateRoutes
from maniflex.admin.declare import Admin
from maniflex.admin.operations.parts import DurableParts, rules_of
from maniflex.admin.rendering import Assets, make_environment, render
from maniflex.admin.site import Sites
from maniflex.admin.superusers import Sessions, Superusers
from maniflex.admin.texts import Texts
from maniflex.admin.transfers import Transfers
from maniflex.admin.views import Views
from maniflex.background.runs.api import Work
from maniflex.db.port import Adapter
from maniflex.features.actions import Action
from maniflex.model.meta import ModelMeta
from maniflex.pipeline.in_process import InProcess
from maniflex.pipeline.routes import RouteBuilder
from maniflex.pipeline.runtime import Runtime


class PanelParts:
    """The declaration, the models, the tables and the files of one panel."""

    in_process: InProcess  # attached when the server is assembled

    def __init__(
        self,
        admin: Admin,
        routes: RouteBuilder,
        sites: Sites,
        *,
        title: str,
        api_actions: Sequence[Action],
        own_authenticators: Sequence[str],
        work: Work,
        durable: DurableParts | None = None,
    ) -> None:
        self.admin = admin
        self.sites = sites
        self.title = title
        self.api_actions = tuple(api_actions)
        types = [*(one.form for one in admin.actions), *(one.request for one in api_actions)]
        self.action_forms = ActionForms(types, sites)
        # auth middleware of the application that is no catalogue entry
        self.own_authenticators = tuple(own_authenticators)
        self.durable = durable
        self.operation_rules = rules_of(admin)
        self.runtime: Runtime = routes.runtime
        self.texts = Texts(admin.texts)
        self.assets = Assets(admin.assets, self.texts.of_module())
        self.private = PrivateRoutes(routes, [site for site in sites.all if site.meta.options.headless])
        self.trail = Trail(self.runtime, self.runtime.config.admin_retention)
        self.views = Views(self.runtime)
        self.transfers = Transfers(self.runtime)
        self.work = work
        self.sessions = Sessions(self.runtime, admin.session_lifetime, admin.idle_timeout)
        self.superusers = Superusers(self.runtime)
        self.has_login = admin.auth != "pipeline" and not admin.allow_unauthenticated
        self._environment = make_environment(admin.templates)

    def render(self, template: str, **values: Any) -> str:
        """The text of a page."""
        return render(self._environment, template, values)

    def zone(self, name: str) -> ZoneInfo:
        """A time zone by its name, or the panel's own."""
        return ZoneInfo(name if name in time_zones() else self.admin.time_zone)

    def adapter_of(self, meta: ModelMeta) -> Adapter:
        """The database of a model."""
        return self.runtime.stores[meta.cls].adapter


@lru_cache(maxsize=1)
def time_zones() -> frozenset[str]:
    """The names of all time zones; the library looks through hundreds of files for them."""
    return frozenset(available_timezones())
