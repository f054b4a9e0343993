"""The admin panel: `server.admin(...)` switches it on, the names here say how it looks."""

from maniflex.admin.declare import (
    Admin,
    AdminAuth,
    Inline,
    Message,
    ModelAdmin,
    Number,
    Operations,
    Redirect,
    Rows,
    Section,
    Series,
)
from maniflex.admin.people import AdminContext

__all__ = [
    "Admin",
    "AdminAuth",
    "AdminContext",
    "Inline",
    "Message",
    "ModelAdmin",
    "Number",
    "Operations",
    "Redirect",
    "Rows",
    "Section",
    "Series",
]
