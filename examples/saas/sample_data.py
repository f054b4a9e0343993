"""Two organizations and their members, for a service to try out."""

from examples.saas.models import Member, Organization, Project
from maniflex import Server
from maniflex.middleware import auth

MEMBERS = {
    "Acme": {"alice@acme.example": "owner", "bob@acme.example": "editor"},
    "Globex": {"dan@globex.example": "owner", "carol@globex.example": "admin"},
}


async def load(server: Server, password: str) -> None:
    """Have the members with this password, and make what is missing."""
    for name, members in MEMBERS.items():
        async with server.transaction():
            found = await server.db(Organization).list({"name": name}, limit=1)
            organization = found[0] if found else await server.db(Organization).create(name=name)
            for email, role in members.items():
                await _member(server, organization.id, email, role, password)
            if not found:
                owner = (await server.db(Member).list({"organization_id": organization.id}, limit=1))[0]
                await server.db(Project).create(
                    organization_id=organization.id, owner_id=owner.id, name="Atlas"
                )


async def _member(server: Server, organization_id: str, email: str, role: str, password: str) -> None:
    members = await server.db(Member).list({"email": email})
    if not members:
        hashed = await auth.hash_password(password)
        await server.db(Member).create(
            organization_id=organization_id, email=email, role=role, password=hashed
        )
    elif not await auth.verify_password(password, members[0].password):
        await server.db(Member).update(members[0].id, password=await auth.hash_password(password))
