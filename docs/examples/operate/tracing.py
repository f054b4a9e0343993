import asyncio

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from maniflex import Context, Model, Run, Server
from maniflex.ext import otel
from maniflex.testing import client


class Order(Model):
    text: str


exporter = InMemorySpanExporter()  # in real life, one that sends to a collector
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

server = Server()
server.register(Order)
otel.instrument(server, tracer_provider=provider)


@server.work.handler("default.receipt")
async def receipt(run: Run) -> None: ...


@server.action("POST", "/pay")
async def pay(ctx: Context) -> str:
    run = await server.work.submit("default.receipt")
    return run.id


async def main() -> None:
    async with client(server, background=True) as http:
        run_id = (await http.post("/api/pay")).json()["data"]
        await server.work.wait(run_id, timeout=10)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    request, run = spans["POST /api/pay"], spans["run default.receipt"]
    assert len({span.context.trace_id for span in (request, run) if span.context}) == 1


if __name__ == "__main__":
    asyncio.run(main())
