import asyncio

from maniflex import Model, Server
from maniflex.doctor.run import examine


class Suggestion(Model):
    text: str


server = Server(database="sqlite:///:memory:")
server.register(Suggestion)
server.doctor_ignore("T101", Suggestion, reason="a box at the door, in a network of its own")


async def main() -> None:
    async with server.lifespan():
        report = await examine(server.doctor_subject(), is_running=True)
    assert "T104" in [finding.code for finding in report.findings]  # its reads are open, too
    assert [finding.code for finding, rule in report.silenced] == ["T101"]


if __name__ == "__main__":
    asyncio.run(main())
