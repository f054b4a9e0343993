"""The line of the access log as one JSON object, for a request that was answered well.

Log lines of a busy server are many, so the object is written out by hand. That is right only while no text
in it needs an escape; a line with one that does goes through the JSON encoder, like all other lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

Names = tuple[str, str, str]  # of a route, its model and its operation
# The moment, the names, method, path, status, milliseconds, bytes, request id, trace id, user, tenant,
# address of the client, id of the record.
AccessValues = tuple[float, Names, str, str, int, float, int, str, str, str, str, str, str]


class AccessObjects:
    """Makes the lines from their values."""

    def __init__(self, logger: str, service: str, encode: Callable[[Mapping[str, Any]], str]) -> None:
        self._encode = encode
        self._fixed = {"level": "info", "logger": logger}
        self._service = {"service": service} if service else {}
        self._patterns: dict[tuple[Names, bool, bool, bool, bool, bool], str] = {}
        self._second = 0
        self._clock = ""  # that second, as it is written

    def clock(self, now: float) -> str:
        """A moment as it is written, in UTC."""
        return f"{self._clock_of(int(now))}.{int(now % 1 * 1000):03d}+00:00"

    def _clock_of(self, second: int) -> str:
        if second != self._second:
            self._second, self._clock = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return self._clock

    def line(self, values: AccessValues) -> str:
        """One line, with its end."""
        at, names, method, path, status, ms, size, request_id, trace_id, user, tenant, client, record = values
        texts = f"{method}{path}{request_id}{trace_id}{user}{tenant}{client}{record}"
        if not (texts.isprintable() and request_id and client) or '"' in texts or "\\" in texts:
            return self._encode_line(values)
        kind = names, size > 0, trace_id != "", user != "", tenant != "", record != ""
        pattern = self._patterns.get(kind) or self._pattern(*kind)
        second = int(at)
        return pattern % (
            self._clock_of(second), (at - second) * 1000, method, path, status, ms, size, user, method, path,
            status, ms, size, request_id, trace_id, user, tenant, client, record,
        )  # fmt: skip

    def _pattern(
        self,
        names: Names,
        has_size: bool,
        has_trace: bool,
        has_user: bool,
        has_tenant: bool,
        has_record: bool,
    ) -> str:
        """Where the values of such lines stand; one that is empty is passed over by `%.0s`."""
        actor = " %s" if has_user else "%.0s"
        fields = [
            '{"time":"%s.%03d+00:00"', self._text(self._fixed),
            f',"message":"%s %s %d %.1f ms %d B{actor}"', self._text(self._service), ',"method":"%s"',
            self._text({"route": names[0]}), ',"path":"%s","status":%d,"duration_ms":%.3f',
            ',"bytes":%d' if has_size else "%.0s", ',"request_id":"%s"',
            ',"trace_id":"%s"' if has_trace else "%.0s", ',"user_id":"%s"' if has_user else "%.0s",
            ',"tenant_id":"%s"' if has_tenant else "%.0s", ',"client_ip":"%s"',
            self._text({"model": names[1], "operation": names[2]}),
            ',"resource_id":"%s"' if has_record else "%.0s", "}\n",
        ]  # fmt: skip
        if len(self._patterns) >= _MOST_PATTERNS:
            self._patterns.clear()
        pattern = self._patterns[names, has_size, has_trace, has_user, has_tenant, has_record] = "".join(
            fields
        )
        return pattern

    def _text(self, fields: Mapping[str, str]) -> str:
        """Fixed fields as they stand in a pattern."""
        pairs = [f",{self._encode({name: value})[1:-1]}" for name, value in fields.items() if value]
        return "".join(pairs).replace("%", "%%")

    def _encode_line(self, values: AccessValues) -> str:
        at, names, method, path, status, ms, size, request_id, trace_id, user, tenant, client, record = values
        actor = f" {escape_breaks(user)}" if user else ""
        path = escape_breaks(path)
        fields = {
            "method": method, "route": names[0], "path": path, "status": status, "duration_ms": round(ms, 3),
            "bytes": size, "request_id": request_id, "trace_id": trace_id, "user_id": user,
            "tenant_id": tenant, "client_ip": client, "model": names[1], "operation": names[2],
            "resource_id": record,
        }  # fmt: skip
        line = {
            "time": self.clock(at),
            **self._fixed,
            "message": f"{method} {path} {status} {ms:.1f} ms {size} B{actor}",
            **self._service,
            **{name: value for name, value in fields.items() if value},
        }
        return self._encode(line) + "\n"


_MOST_PATTERNS = 10_000


def escape_breaks(text: str) -> str:
    """The text without line breaks, behind which would stand a line that somebody else has written."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
