import asyncio

from maniflex import Context, Model, Next, Operation, Server, field
from maniflex.testing import client


class Invoice(Model, export=True, max_export_rows=50_000):
    number: str = field(sortable=True)
    status: str = field(default="draft", filterable=True)
    margin: int = 0


server = Server()
server.register(Invoice)


@server.pipeline.service.middleware(models=[Invoice], operations=[Operation.EXPORT])
async def hide_margins(ctx: Context, next: Next) -> None:
    if not ctx.has_role("manager"):
        ctx.export_columns.remove("margin")
    await next()


async def main() -> None:
    async with client(server) as http:
        for number in ("2030-2", "=1+1"):
            await http.post("/api/invoices", json={"number": number, "status": "posted", "margin": 7})

        file = await http.get("/api/invoices/export?filter=status:eq:posted&sort=number")
        header, first, second = file.text.splitlines()
        assert header == "id,number,status,created_at,updated_at"
        assert "2030-2" in first
        assert ",'=1+1," in second  # a spreadsheet shows it and computes nothing

        book = await http.get("/api/invoices/export?format=xlsx&select=number,status")
        assert book.headers["content-disposition"].endswith('.xlsx"')


if __name__ == "__main__":
    asyncio.run(main())
