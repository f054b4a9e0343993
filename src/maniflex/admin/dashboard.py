"""The front page: models with their numbers, cards, recent changes; and pages of the application."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from maniflex.admin.audit import EventRow, event_rows, find_events
from maniflex.admin.declare import Card, Number, OwnPage, Rows, Series
from maniflex.admin.site import ModelSite
from maniflex.admin.visit import MOST_COUNTED, Handler, PanelRoute, Visit, show
from maniflex.admin.widgets import group_digits
from maniflex.errors import NotFound
from maniflex.pipeline.operation import Operation
from maniflex.pipeline.response import Response

_CARD_SECONDS = 5.0
_MOST_RECENT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One model on the front page."""

    label: str
    url: str
    count: str = ""  # empty while a script asks for it


@dataclass(frozen=True, slots=True, kw_only=True)
class CardTile:
    """A card on the front page."""

    title: str
    size: str
    load_url: str
    refresh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardView:
    """What `dashboard.html` is given."""

    groups: Sequence[tuple[str, Sequence[Tile]]]
    cards: Sequence[CardTile]
    recent: Sequence[EventRow]
    audit_url: str
    counts_url: str  # of the same page with its numbers, for browsers without scripts; empty on that page


@dataclass(frozen=True, slots=True, kw_only=True)
class CardView:
    """What `card.html` is given."""

    title: str
    number: str = ""
    delta: str = ""
    link: str = ""
    text: str = ""
    plot: Plot | None = None
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    error: str = ""


async def show_dashboard(visit: Visit) -> Response:
    """The models this person may list, and the cards."""
    groups = []
    for label, sites in visit.panel.sites.groups:
        tiles = [
            Tile(
                label=site.plural,
                url=visit.url(site.table),
                count=await _count_text(visit, site) if visit.param("counts") else "",
            )
            for site in sites
            if not site.is_singleton and await visit.api.may(site, Operation.LIST)
        ]
        if tiles:
            groups.append((label or visit.t("records"), tiles))
    cards = [
        CardTile(title=c.title, size=c.size, load_url=visit.url("-", "card", c.name), refresh=c.refresh)
        for c in visit.panel.admin.cards
    ]
    if visit.sees_work and visit.panel.durable is not None and visit.panel.durable.work.is_used:
        failed_url = visit.url("-", "operations", "failed")
        cards.append(
            CardTile(title=visit.t("ops_failed_work"), size="small", load_url=failed_url, refresh=30)
        )
    events = await find_events(visit, [("model", "neq", "")], _MOST_RECENT)
    view = DashboardView(
        groups=groups,
        cards=cards,
        recent=await event_rows(visit, events),
        audit_url=visit.url("-", "audit"),
        counts_url="" if visit.param("counts") else f"{visit.root}/?counts=1",
    )
    return await visit.page("dashboard.html", view, title=visit.t("dashboard"))


async def show_count(visit: Visit) -> Response:
    """How many records a model has, as a part of the front page."""
    site = visit.site()
    if not await visit.api.may(site, Operation.LIST):
        raise NotFound(visit.t("no_such_page"))
    view = CardView(title=site.plural, number=await _count_text(visit, site))
    return await visit.page("card.html", view, title=site.plural)


async def _count_text(visit: Visit, site: ModelSite) -> str:
    total = await visit.api.count(site, ())
    number = "" if total is None else group_digits(str(min(total, MOST_COUNTED)))
    plus = "+" if total is not None and total > MOST_COUNTED else ""
    return f"{number}{plus}" or "–"


async def show_card(visit: Visit) -> Response:
    """A card of the application; one that fails or takes too long says so."""
    card = next((one for one in visit.panel.admin.cards if one.name == visit.params["name"]), None)
    if card is None:
        raise NotFound(visit.t("no_such_page"))
    try:
        async with asyncio.timeout(_CARD_SECONDS):
            view = await _card_view(visit, card)
    except TimeoutError:
        view = CardView(title=card.title, error=visit.t("card_slow"))
    except Exception:
        visit.ctx.logger.exception("the card %s of the panel failed", card.name)
        view = CardView(title=card.title, error=visit.t("card_failed"))
    return await visit.page("card.html", view, title=card.title)


async def _card_view(visit: Visit, card: Card) -> CardView:
    value: Any = card.handler(visit.admin_context())
    if inspect.isawaitable(value):
        value = await value
    if isinstance(value, Number):
        link = visit.root + visit.safe_next(value.link) if value.link else ""
        delta = (
            ""
            if value.delta is None
            else f"{value.delta:+}"
            if isinstance(value.delta, int | float)
            else str(value.delta)
        )
        return CardView(title=card.title, number=group_digits(str(value.value)), delta=delta, link=link)
    if isinstance(value, Series):
        return CardView(title=card.title, plot=draw([float(y) for _, y in value.points], kind=value.kind))
    if isinstance(value, Rows):
        rows = [[str(one) for one in row] for row in value.rows[:50]]
        return CardView(title=card.title, columns=list(map(str, value.columns)), rows=rows)
    return CardView(title=card.title, text=str(value))


def own_page_routes(pages: Sequence[OwnPage]) -> list[PanelRoute]:
    """The routes of the application's own pages."""
    return [show(page.path, _own_page(page)) for page in pages]


def _own_page(page: OwnPage) -> Handler:
    async def handler(visit: Visit) -> Response:
        values: Any = page.handler(visit.admin_context())
        if inspect.isawaitable(values):
            values = await values
        return await visit.page(page.template, values, title=page.title)

    return handler


ROUTES = (
    show("/", show_dashboard),
    show("/-/count/{model}", show_count),
    show("/-/card/{name}", show_card),
)


# Plots as SVG that the server writes: no script draws, no style is inline.


WIDTH, HEIGHT = 300.0, 80.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot: the path of a line, or the bars."""

    path: str
    bars: Sequence[tuple[float, float, float, float]]  # x, y, width, height
    text: str  # the same for those who do not see it


def draw(values: Sequence[float], *, kind: str = "line") -> Plot:
    """The plot of some values, over their whole range."""
    if not values:
        return Plot(path="", bars=(), text="")
    low, high = min(0.0, *values), max(0.0, *values)
    span = (high - low) or 1.0
    step = WIDTH / max(len(values) - (kind == "line"), 1)
    heights = [round((value - low) / span * (HEIGHT - 4), 2) for value in values]
    text = f"{len(values)} values, from {min(values):g} to {max(values):g}, last {values[-1]:g}"
    if kind == "bar":
        bars = [(round(n * step, 2), HEIGHT - h, round(step * 0.8, 2), h) for n, h in enumerate(heights)]
        return Plot(path="", bars=bars, text=text)
    points = [f"{round(n * step, 2)},{round(HEIGHT - 2 - h, 2)}" for n, h in enumerate(heights)]
    return Plot(path="M" + " L".join(points), bars=(), text=text)
