"""The suite every database adapter passes.

Subclass it in a test module and give it an adapter; needs pytest with pytest-asyncio in auto mode.

    class TestMyAdapter(AdapterConformance):
        @pytest.fixture
        async def adapter(self) -> AsyncIterator[Adapter]:
            mine = MyAdapter(...)
            await mine.open()
            yield mine
            await mine.close()
"""

from __future__ import annotations

import pytest

# Before the parts are imported, so that their failures show the values that differed.
for _part in ("_case", "_constraints", "_statements", "_streams", "_transactions"):
    pytest.register_assert_rewrite(f"{__name__}.{_part}")

from maniflex.testing.conformance._case import sql  # noqa: E402
from maniflex.testing.conformance._constraints import Constraints  # noqa: E402
from maniflex.testing.conformance._statements import Statements  # noqa: E402
from maniflex.testing.conformance._streams import Streams  # noqa: E402
from maniflex.testing.conformance._transactions import Concurrency, Transactions  # noqa: E402


class AdapterConformance(Statements, Streams, Constraints, Transactions, Concurrency):
    """What an `Adapter` promises; override the `adapter` fixture with one open on an empty database."""


__all__ = ["AdapterConformance", "sql"]
