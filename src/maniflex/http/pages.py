"""The addresses of a server that people look at."""

from __future__ import annotations

from maniflex.config import Config


def pages_of(config: Config, panel: str = "") -> dict[str, str]:
    """The paths of the pages that are on, by what they are called."""
    pages = {"panel": f"{panel}/"} if panel else {}
    if config.openapi_enabled and config.docs_enabled:
        pages["API reference"] = "/docs"
    if config.openapi_enabled:
        pages["API description"] = f"{config.path_prefix}/openapi.json"
    if "health" in config.probes:
        pages["health"] = "/health"
    if config.metrics_enabled and not config.metrics_port:
        pages["numbers"] = "/metrics"
    return pages
