"""The texts that the module in the browser shows, by key."""

from __future__ import annotations

SCRIPT_TEXTS: dict[str, str] = {
    "pick_hint": "Type to search",
    "pick_another": "Add …",
    "hits": "Hits",
    "hits_found": "{count} found",
    "remove_hit": "Remove {name}",
    "outside_bounds": "The value is outside of its bounds.",
    "too_long": "At most {count} characters.",
    "copied": "copied",
    "saving": "saving …",
    "seen_ago": "last seen {seconds} s ago",
    "paused": "paused",
    "palette_hint": "Search records, pages and actions",
    "keys": "Keys",
    "key_search": "search",
    "key_palette": "palette",
    "key_rows": "rows",
    "key_select": "select the row",
    "key_open": "open the row",
    "key_edit": "edit",
    "key_new": "new",
    "key_save": "save",
    "key_help": "these keys",
    "key_close": "close",
}
# Texts of pages that the module shows, too.
SHARED_KEYS = ("close", "nothing_matches", "saved", "search", "session_ended")
