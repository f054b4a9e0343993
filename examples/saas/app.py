"""The service with the settings of the environment: `maniflex run examples.saas.app:server`."""

import os
from pathlib import Path

from examples.saas.server import create_server
from examples.secret_files import secret_in
from maniflex import Config

DATA = Path(os.environ.get("SAAS_DATA", ".saas"))
server = create_server(
    Config.from_env(
        database=os.environ.get("DB_WRITE_URL") or f"sqlite:///{DATA}/saas.db",
        openapi_enabled=True,  # the description of the API and its page are for everybody
        docs_enabled=True,
    ),
    os.environ.get("SAAS_SECRET") or secret_in(DATA / "token_secret"),
)

if __name__ == "__main__":
    server.run()
