import asyncio
from typing import Any

from maniflex import Server
from maniflex.background.jobs import InProcessQueue, Job
from maniflex.testing import client

server = Server()

# In production: RedisQueue("redis://10.0.0.5:6379") of maniflex.background.jobs.redis,
# or NatsQueue("nats://10.0.0.5:4222", replicas=3) of maniflex.background.jobs.nats
server.jobs.use(InProcessQueue(), concurrency=16)
server.jobs.mount_status(public=True)


@server.jobs.handler("thumbnail")
def thumbnail(job: Job) -> dict[str, int]:
    return {"width": job.payload["width"] // 10}


async def main() -> None:
    async with client(server, background=True) as http:
        job_id = await server.jobs.enqueue("thumbnail", {"width": 640})

        status: dict[str, Any] = {"status": "enqueued"}
        while status["status"] in ("enqueued", "running"):
            status = (await http.get(f"/api/job_statuses/{job_id}")).json()["data"]

        assert status["status"] == "succeeded"
        assert status["output"] == {"width": 64}


if __name__ == "__main__":
    asyncio.run(main())
