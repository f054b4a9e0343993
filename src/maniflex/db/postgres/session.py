"""The settings that every PostgreSQL session of ours starts with."""

from __future__ import annotations

from datetime import timedelta

from maniflex.errors import ConfigError

# One plan for each statement, made once, that walks indexes.
STEADY = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_hashagg": "off",
}


def session_settings(schema: str | None, application_name: str, **timeouts: timedelta) -> dict[str, str]:
    """What every session starts with; a zero timeout leaves the server's own."""
    # Compiling a statement takes longer than running any of ours.
    settings = {"application_name": application_name, "TimeZone": "UTC", "jit": "off"}
    if schema is not None:
        settings["search_path"] = f'"{schema}"'
    for name, timeout in timeouts.items():
        if timeout < timedelta(0):
            raise ConfigError(f"{name} cannot be negative")
        if timeout:
            settings[name] = str(max(1, timeout // timedelta(milliseconds=1)))
    return settings


def set_local(settings: dict[str, str]) -> str:
    """The same settings for one transaction, to follow its BEGIN in one message."""
    values = {name: "'" + value.replace("'", "''") + "'" for name, value in settings.items()}
    if "search_path" in settings:
        values["search_path"] = settings["search_path"]  # an identifier already, not a text
    return "".join(f"; SET LOCAL {name} = {value}" for name, value in values.items())
