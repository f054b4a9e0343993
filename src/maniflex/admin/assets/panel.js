// The panel works without this module. It adds pickers, the palette, keys, counts and warnings; data is always text.
const root = document.body.dataset.root;
const csrf = document.body.dataset.csrf;
const live = document.getElementById("live");
const policy = window.trustedTypes?.createPolicy("maniflex", { createHTML: (text) => text });

/** A text of the panel, whose texts are put before this module when it is served. */
const t = (key, values = {}) => globalThis.panelTexts[key].replace(
  /\{(\w+)\}/g, (whole, name) => Object.hasOwn(values, name) ? values[name] : whole);
const say = (text) => { if (live) live.textContent = text; };
const make = (name, attributes = {}, text = "") => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  return element;
};

/** A part of a page of ours, as a document; null when the session has ended or the server is away. */
async function fragment(url, signal) {
  const target = new URL(url, location.href);
  if (target.origin !== location.origin || !target.pathname.startsWith(root)) return null;
  try {
    const response = await fetch(target, { headers: { "X-Fragment": "1" }, signal, credentials: "same-origin" });
    if (response.status === 401) { say(t("session_ended")); return null; }
    return response;
  } catch { return null; }
}

async function page(url, signal) {
  const response = await fragment(url, signal);
  if (!response?.ok) return null;
  const text = await response.text();
  return new DOMParser().parseFromString(policy ? policy.createHTML(text) : text, "text/html");
}

const isTyping = (target) => target.closest?.("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]");

// -- the drawer is open on wide screens

const drawer = document.querySelector("[data-drawer]");
if (drawer) {
  const wide = matchMedia("(min-width: 721px)");
  const follow = () => { drawer.open = wide.matches; };
  follow();
  wide.addEventListener("change", follow);
}

// -- numbers are texts to a browser, and it counts a letter beyond the first 65,536 as two, so bounds and lengths are
//    looked at here; the server is who refuses

document.addEventListener("input", ({ target }) => {
  const { min, max, longest } = target.dataset ?? {};
  if (min === undefined && max === undefined && longest === undefined) return;
  const isOutside = target.value.trim() && (Number(target.value) < Number(min) || Number(target.value) > Number(max));
  const isTooLong = [...target.value].length > Number(longest);
  target.setCustomValidity(isOutside ? t("outside_bounds") : isTooLong ? t("too_long", { count: longest }) : "");
});

// -- menus close when something else is meant

document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.drop[open]")) if (!menu.contains(event.target)) menu.open = false;
});

// -- combobox: type to search, arrows, Enter

let combos = 0;
class Combo {
  constructor(field) {
    this.field = field;
    this.many = "many" in field.dataset;
    const label = document.querySelector(`label[for="${CSS.escape(field.id)}"]`);
    this.id = `combo-${combos += 1}`;
    this.box = make("div", { class: "combo" });
    this.input = make("input", {
      type: "text", role: "combobox", autocomplete: "off", spellcheck: "false", "aria-expanded": "false",
      "aria-autocomplete": "list", "aria-controls": this.id, "aria-label": label?.textContent.trim() ?? t("search"),
    });
    if (field.getAttribute("aria-describedby")) this.input.setAttribute("aria-describedby", field.getAttribute("aria-describedby"));
    if (field.getAttribute("aria-invalid")) this.input.setAttribute("aria-invalid", "true");
    this.input.placeholder = this.many ? t("pick_another") : t("pick_hint");
    this.list = make("ul", { id: this.id, role: "listbox", "aria-label": label?.textContent.trim() ?? t("hits") });
    this.list.hidden = true;
    this.box.append(this.input, this.list);
    field.before(this.box);
    field.hidden = true;
    for (const element of field.parentElement.querySelectorAll("[data-pick-label], a[target]:not([data-new])")) element.hidden = true;
    const hint = field.parentElement.querySelector("p > a[target]:not([data-new])");
    if (hint) hint.parentElement.hidden = true;
    if (this.many) {
      this.showChips();
      for (const help of field.closest(".field")?.querySelectorAll(".help") ?? []) help.hidden = true;
    }
    else this.input.value = field.dataset.label || field.value;
    this.input.addEventListener("input", () => this.wait());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("focus", () => { if (!this.many) this.input.select(); });
    this.input.addEventListener("blur", () => setTimeout(() => this.leave(), 150));
    label?.addEventListener("click", () => this.input.focus());
  }
  wait() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), 120);
  }
  async ask() {
    this.abort?.abort();
    this.abort = new AbortController();
    const response = await fragment(`${this.field.dataset.pick}?q=${encodeURIComponent(this.input.value)}`, this.abort.signal);
    if (!response?.ok) return;
    const hits = await response.json();
    this.list.replaceChildren(...hits.map((hit, number) => {
      const item = make("li", { role: "option", id: `${this.id}-${number}`, "aria-selected": "false" }, hit.label);
      item.append(make("small", {}, hit.id));
      item.addEventListener("mousedown", (event) => { event.preventDefault(); this.take(hit); });
      item.hit = hit;
      return item;
    }));
    this.at = -1;
    if (!hits.length) this.list.append(make("li", { role: "option", "aria-disabled": "true", class: "null" }, t("nothing_matches")));
    this.open(true);
    say(t("hits_found", { count: hits.length }));
  }
  open(is) {
    this.list.hidden = !is;
    this.input.setAttribute("aria-expanded", String(is));
    if (!is) this.input.removeAttribute("aria-activedescendant");
  }
  move(step) {
    const items = [...this.list.children].filter((item) => item.hit);
    if (!items.length) return;
    items[this.at]?.setAttribute("aria-selected", "false");
    this.at = (this.at + step + items.length) % items.length;
    items[this.at].setAttribute("aria-selected", "true");
    items[this.at].scrollIntoView({ block: "nearest" });
    this.input.setAttribute("aria-activedescendant", items[this.at].id);
  }
  key(event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (this.list.hidden) this.ask(); else this.move(event.key === "ArrowDown" ? 1 : -1);
    } else if (event.key === "Enter" && !this.list.hidden) {
      event.preventDefault();
      const item = this.list.children[Math.max(this.at, 0)];
      if (item?.hit) this.take(item.hit);
    } else if (event.key === "Escape" && !this.list.hidden) {
      event.stopPropagation();
      this.open(false);
    }
  }
  take(hit) {
    if (this.many) {
      const ids = this.ids();
      if (!ids.includes(hit.id)) this.set([...ids, hit.id], { [hit.id]: hit.label });
      this.input.value = "";
    } else {
      this.field.value = hit.id;
      this.input.value = hit.label;
      this.field.dispatchEvent(new Event("input", { bubbles: true }));
    }
    this.open(false);
  }
  leave() {
    this.open(false);
    if (this.many) return;
    const text = this.input.value.trim();
    if (!text) this.field.value = "";
    else if (/^[0-9a-f-]{30,}$/.test(text)) this.field.value = text;
  }
  ids() { return this.field.value.split(/\s+/).filter(Boolean); }
  set(ids, labels = {}) {
    this.labels = { ...this.labels, ...labels };
    this.field.value = ids.join("\n");
    this.field.dispatchEvent(new Event("input", { bubbles: true }));
    this.showChips();
  }
  showChips() {
    this.chips ??= make("div", { class: "chips" });
    this.box.before(this.chips);
    this.chips.replaceChildren(...this.ids().map((id) => {
      const text = this.labels?.[id] ?? id;
      const chip = make("span", { class: "chip" }, text);
      const remove = make("button", { type: "button", "aria-label": t("remove_hit", { name: text }) }, "×");
      remove.addEventListener("click", () => { this.set(this.ids().filter((one) => one !== id)); this.input.focus(); });
      chip.append(remove);
      if (!this.labels?.[id]) this.name(id, chip);
      return chip;
    }));
  }
  async name(id, chip) {
    const response = await fragment(`${this.field.dataset.pick}?q=${encodeURIComponent(id)}`);
    const hit = response?.ok ? (await response.json()).find((one) => one.id === id) : null;
    if (!hit) return;
    this.labels = { ...this.labels, [id]: hit.label };
    chip.firstChild.textContent = hit.label;
    chip.lastChild.setAttribute("aria-label", t("remove_hit", { name: hit.label }));
  }
}

// -- rows inside a form: the empty one is the pattern of those that are added

for (const table of document.querySelectorAll("[data-inline]")) {
  const pattern = table.querySelector("tr[data-blank]:last-child")?.cloneNode(true);
  const button = table.querySelector("[data-add]");
  if (!pattern || !button) continue;
  const [, start, first] = pattern.dataset.place.match(/^(.*\.)(\d+)$/);
  let next = Number(first) + 1;
  button.hidden = false;
  button.addEventListener("click", () => {
    const row = pattern.cloneNode(true);
    for (const element of [row, ...row.querySelectorAll("*")])
      for (const attribute of [...element.attributes])
        if (attribute.value.includes(start + first)) element.setAttribute(attribute.name, attribute.value.replaceAll(start + first, start + next));
    next += 1;
    table.querySelector("tbody").append(row);
    enhance(row);
    row.querySelector("input:not([type=hidden]):not([hidden]), textarea, select")?.focus();
  });
}

// -- pickers and null switches, copy buttons, the first error

function enhance(part) {
  for (const field of part.querySelectorAll("[data-pick]")) new Combo(field);
  for (const box of part.querySelectorAll("[data-null]")) {
    const field = document.getElementById(box.dataset.null);
    field?.addEventListener("input", () => { if (field.value) box.checked = false; });
    box.addEventListener("change", () => { if (box.checked && field) field.value = ""; });
  }
}
enhance(document);
// -- texts in several languages: a tab for each, and one for a further language

function makeTabs(box) {
  const panels = [...box.querySelectorAll(":scope > .fields > .field")];
  if (panels.length < 2) return;
  const list = make("div", { class: "tabs", role: "tablist", "aria-label": box.querySelector("legend").textContent.trim() });
  const choose = (number, focus = false) => panels.forEach((panel, n) => {
    panel.hidden = n !== number;
    tabs[n].setAttribute("aria-selected", String(n === number));
    tabs[n].tabIndex = n === number ? 0 : -1;
    if (focus && n === number) tabs[n].focus();
  });
  const tabs = panels.map((panel, number) => {
    const label = panel.querySelector("label");
    const inputs = [...panel.querySelectorAll("input, textarea")];
    const name = ("newText" in panel.dataset ? "+ " : "") + label.textContent.trim();
    const tab = make("button", { type: "button", role: "tab", id: `${panel.id}-tab`, "aria-controls": panel.id }, name);
    const mark = () => tab.classList.toggle("missing", !inputs.some((input) => input.value));
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
    if (!("newText" in panel.dataset)) label.classList.add("away");
    tab.classList.toggle("faulty", panel.querySelector(".wrong") !== null);
    mark();
    panel.addEventListener("input", mark);
    tab.addEventListener("click", () => choose(number));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) choose((number + step + panels.length) % panels.length, true);
    });
    document.addEventListener("click", (event) => {
      const link = event.target.closest?.('a[href^="#field-"]');
      if (link && decodeURIComponent(link.hash.slice(1)) === panel.id) choose(number);
    });
    list.append(tab);
    return tab;
  });
  box.querySelector(":scope > .fields").before(list);
  choose(Math.max(0, tabs.findIndex((tab) => tab.classList.contains("faulty"))));
}
for (const box of document.querySelectorAll("[data-tabs]")) makeTabs(box);

for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => { await navigator.clipboard?.writeText(button.dataset.copy); say(t("copied")); });
}
document.querySelector("[data-focus]")?.focus();
document.querySelector('[aria-invalid="true"]:not([hidden])')?.focus();

// -- a changed form is not left by accident, and is sent once

for (const form of document.querySelectorAll("form[data-guard]")) {
  let changed = Boolean(document.querySelector("[data-focus]"));
  form.addEventListener("input", () => { changed = true; });
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "1";
    changed = false;
    setTimeout(() => { delete form.dataset.sent; }, 4000);
    say(t("saving"));
  });
  for (const area of form.querySelectorAll("textarea.code:not([data-pick])")) {
    area.addEventListener("keydown", (event) => {
      if (event.key === "Tab" && !event.shiftKey && !event.ctrlKey && area.dataset.tab) { event.preventDefault(); area.setRangeText("  ", area.selectionStart, area.selectionEnd, "end"); }
    });
  }
  addEventListener("beforeunload", (event) => { if (changed) event.preventDefault(); });
}

// -- numbers and cards of the dashboard come after the page

async function fill(tile) {
  const link = tile.closest("a");
  const part = await page(tile.dataset.load ?? link.href.replace(`${root}/`, `${root}/-/count/`));
  const content = part?.querySelector("[data-part]");
  if (!content) return;
  tile.replaceChildren(...content.childNodes);
}
const later = [...document.querySelectorAll("[data-load], [data-count]")];
(async () => {
  const next = async () => { for (let tile = later.shift(); tile; tile = later.shift()) await fill(tile); };
  await Promise.all([next(), next(), next()]);
})();
for (const tile of document.querySelectorAll("[data-refresh]")) {
  const seconds = Math.max(Number(tile.dataset.refresh), 2);
  setInterval(() => { if (!document.hidden) fill(tile); }, seconds * 1000);
}

// -- operations: parts that refresh themselves, a form that goes on, a preview of times

const parts = document.querySelectorAll("[data-live]");
const liveState = document.querySelector("[data-live-state]");
const pause = document.querySelector("[data-live-pause]");
let isPaused = false;

/** A part of the page that is asked for again: one request at a time, none in a hidden tab, slower after errors. */
class Live {
  constructor(part) {
    this.part = part;
    this.every = Number(part.dataset.every) * 1000;
    this.delay = this.every;
    this.seen = Date.now();
    this.etag = "";
    this.light = this.sentence();
    this.plan();
  }
  sentence() { return this.part.querySelector("[data-light]")?.textContent.trim() ?? ""; }
  plan() {
    clearTimeout(this.timer);
    if (!isPaused && !document.hidden) this.timer = setTimeout(() => this.ask(), this.delay);
  }
  async ask() {
    if (this.busy) return;
    this.busy = true;
    const fresh = await this.fetch();
    this.busy = false;
    if (fresh === null) {
      this.delay = Math.min(Math.max(this.delay * 2, this.every), Math.max(10000, this.every));
      if (liveState) liveState.textContent = t("seen_ago", { seconds: Math.round((Date.now() - this.seen) / 1000) });
    } else {
      this.delay = this.every;
      this.seen = Date.now();
      if (liveState && !isPaused) liveState.textContent = "";
      if (fresh) this.show(fresh);
    }
    this.plan();
  }
  async fetch() {
    const target = new URL(this.part.dataset.live, location.href);
    if (target.origin !== location.origin || !target.pathname.startsWith(root)) return null;
    try {
      const signal = AbortSignal.timeout(15000);
      const response = await fetch(target, { headers: { "X-Fragment": "1", "If-None-Match": this.etag }, signal, cache: "no-store" });
      if (response.status === 304) return "";
      if (response.status === 401) { say(t("session_ended")); return null; }
      if (!response.ok) return null;
      this.etag = response.headers.get("etag") ?? "";
      return await response.text();
    } catch { return null; }
  }
  show(text) {
    const fresh = new DOMParser().parseFromString(policy ? policy.createHTML(text) : text, "text/html");
    const at = this.part.contains(document.activeElement) ? document.activeElement : null;
    const open = [...this.part.querySelectorAll("details[open] > summary")].map((one) => one.textContent);
    const again = at && [...this.part.querySelectorAll("a, [tabindex], button, summary")].indexOf(at);
    this.part.replaceChildren(...fresh.body.childNodes);
    for (const summary of this.part.querySelectorAll("details > summary")) if (open.includes(summary.textContent)) summary.parentElement.open = true;
    if (at) this.part.querySelectorAll("a, [tabindex], button, summary")[again]?.focus({ preventScroll: true });
    const sentence = this.sentence();
    if (sentence && sentence !== this.light) say(sentence);
    this.light = sentence;
  }
}
const lives = [...parts].map((part) => new Live(part));
document.addEventListener("visibilitychange", () => {
  for (const one of lives) if (document.hidden) clearTimeout(one.timer); else if (!isPaused) one.ask();
});
if (pause && lives.length) {
  pause.hidden = false;
  pause.setAttribute("aria-pressed", "false");
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    if (liveState) liveState.textContent = isPaused ? t("paused") : "";
    for (const one of lives) if (isPaused) clearTimeout(one.timer); else one.ask();
  });
}
for (const form of document.querySelectorAll("form[data-preview]")) {
  const box = document.getElementById("preview");
  let timer;
  form.querySelector("[data-preview-button]").hidden = true;
  form.addEventListener("input", (event) => {
    if (!["cron", "timezone"].includes(event.target.name)) return;
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const query = new URLSearchParams({ cron: form.elements.cron.value, timezone: form.elements.timezone.value });
      const fresh = await page(`${form.dataset.preview}?${query}`);
      if (fresh) box.replaceChildren(...fresh.body.childNodes);
    }, 250);
  });
}
// -- a page that follows work in the background until it is over

async function followWork(box) {
  await new Promise((wake) => { setTimeout(wake, 1000); });
  const content = document.hidden ? null : (await page(location.href))?.querySelector("[data-follow], [data-over]");
  if (content?.hasAttribute("data-over")) { location.reload(); return; }
  if (content) box.replaceChildren(...content.childNodes);
  followWork(box);
}
for (const box of document.querySelectorAll("[data-follow]")) followWork(box);

// -- palette

let palette = null;
async function openPalette() {
  if (!palette) {
    palette = make("dialog", { "aria-label": t("search") });
    const input = make("input", { type: "search", placeholder: t("palette_hint"), "aria-label": t("search"), autocomplete: "off", role: "combobox", "aria-expanded": "true", "aria-controls": "palette-hits" });
    const hits = make("div", { id: "palette-hits", role: "listbox", "aria-label": t("hits"), tabindex: "-1" });
    palette.append(input, hits);
    document.body.append(palette);
    let timer, at = 0, abort;
    const show = () => {
      const links = [...hits.querySelectorAll("a")];
      links.forEach((link, number) => { link.classList.toggle("at", number === at); link.setAttribute("aria-selected", String(number === at)); });
      links[at]?.scrollIntoView({ block: "nearest" });
    };
    const ask = async () => {
      abort?.abort();
      abort = new AbortController();
      const text = input.value.trim();
      const part = text ? await page(`${root}/-/search?q=${encodeURIComponent(text)}`, abort.signal) : null;
      const found = part?.querySelector("#hits") ?? pagesList();
      for (const link of found.querySelectorAll("a")) link.setAttribute("role", "option");
      hits.replaceChildren(...found.querySelectorAll("a"));
      hits.className = "hits";
      at = 0;
      show();
      say(t("hits_found", { count: hits.children.length }));
    };
    input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, 120); });
    input.addEventListener("keydown", (event) => {
      const links = hits.querySelectorAll("a");
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        at = (at + (event.key === "ArrowDown" ? 1 : -1) + links.length) % Math.max(links.length, 1);
        show();
      } else if (event.key === "Enter") {
        event.preventDefault();
        if (links[at]) location.assign(links[at].href);
      }
    });
    palette.ask = ask;
    palette.input = input;
  }
  palette.input.value = "";
  palette.showModal();
  palette.input.focus();
  await palette.ask();
}
function pagesList() {
  const list = make("ul");
  for (const link of document.querySelectorAll(".side a")) {
    const item = make("li");
    item.append(link.cloneNode(true));
    list.append(item);
  }
  return list;
}

function openHelp() {
  let help = document.getElementById("keys");
  if (!help) {
    help = make("dialog", { id: "keys", "aria-label": t("keys") });
    const inside = make("div", { class: "inside" });
    inside.append(make("h2", {}, t("keys")));
    const table = make("table");
    const meanings = {
      "/": t("key_search"), "Ctrl K": t("key_palette"), "j, k": t("key_rows"), x: t("key_select"), Enter: t("key_open"),
      e: t("key_edit"), n: t("key_new"), "Ctrl S": t("key_save"), "?": t("key_help"), Esc: t("key_close"),
    };
    for (const [key, meaning] of Object.entries(meanings)) {
      const row = make("tr");
      const cell = make("td");
      cell.append(make("kbd", {}, key));
      row.append(cell, make("td", {}, meaning));
      table.append(row);
    }
    const close = make("button", { type: "button" }, t("close"));
    close.addEventListener("click", () => help.close());
    inside.append(table, close);
    help.append(inside);
    document.body.append(help);
  }
  help.showModal();
}

// -- keys

const rows = [...document.querySelectorAll("tr[data-row]")];
let row = -1;
function goTo(number) {
  if (!rows.length) return;
  rows[row]?.classList.remove("at");
  row = Math.min(Math.max(number, 0), rows.length - 1);
  rows[row].classList.add("at");
  rows[row].scrollIntoView({ block: "nearest" });
  rows[row].querySelector("a")?.focus();
}
const actions = {
  "/": () => (document.querySelector("#q") ?? document.querySelector("#find"))?.focus(),
  "?": openHelp,
  j: () => goTo(row + 1),
  k: () => goTo(row - 1),
  x: () => rows[row]?.querySelector("input[type=checkbox]")?.click(),
  e: () => document.querySelector('[data-key="e"]')?.click(),
  n: () => document.querySelector('[data-key="n"]')?.click(),
};
document.addEventListener("keydown", (event) => {
  const command = event.ctrlKey || event.metaKey;
  if (command && event.key.toLowerCase() === "k") { event.preventDefault(); openPalette(); return; }
  if (command && event.key.toLowerCase() === "s") {
    const save = document.querySelector("[data-save]");
    if (save) { event.preventDefault(); save.click(); }
    return;
  }
  if (command || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
  const action = actions[event.key];
  if (action) { event.preventDefault(); action(); }
});

// -- cells that are changed in place

for (const cell of document.querySelectorAll("td[data-edit]")) {
  const start = () => {
    if (cell.querySelector("select")) return;
    const before = [...cell.childNodes];
    const select = make("select", { "aria-label": cell.dataset.label });
    for (const option of JSON.parse(cell.dataset.options)) select.append(make("option", {}, option));
    select.value = cell.dataset.value;
    cell.replaceChildren(select);
    select.focus();
    const stop = () => { if (select.isConnected) cell.replaceChildren(...before); };
    select.addEventListener("blur", stop);
    select.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.stopPropagation(); stop(); } });
    select.addEventListener("change", async () => {
      select.disabled = true;
      const body = new URLSearchParams({ _csrf: csrf, value: select.value, base: cell.dataset.value });
      const response = await fetch(cell.dataset.edit, { method: "POST", body, headers: { "X-Fragment": "1" } });
      const answer = response.ok ? await response.json() : { error: `${response.status}` };
      if (answer.error) { cell.replaceChildren(...before, make("span", { class: "wrong", role: "alert" }, answer.error)); return; }
      cell.dataset.value = answer.value;
      cell.replaceChildren(make("span", { class: before[0]?.className ?? "" }, answer.text));
      say(t("saved"));
    });
  };
  cell.addEventListener("dblclick", start);
  cell.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target === cell) { event.preventDefault(); event.stopPropagation(); start(); } });
}
