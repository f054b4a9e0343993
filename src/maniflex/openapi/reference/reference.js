// The page: groups and operations are made when they are scrolled to or opened, so that large APIs open at once.
import { deref, example, h, lazy, nameOf, prose, row, slug, state, tree, typeLink } from "./schemas.js";
import { openAuth, startAuth, tryIt } from "./try.js";

const $ = (id) => document.getElementById(id);
const METHODS = ["get", "post", "put", "patch", "delete", "head", "options"];
const EXTRA = ["head", "options"];
const MOST_HITS = 100;
let groups = [];
let entries = [];
let current = "";

/* -- one operation ------------------------------------------------------------------------------ */
const needs = (op) => op.security || state.spec.security || [];
function access(op) {
  const schemes = (state.spec.components || {}).securitySchemes || {};
  const ways = needs(op).map((way) => Object.keys(way).map((name) => {
    const { type, scheme, in: where, name: header } = schemes[name] || {};
    return `\`${name}\` (${type === "http" ? scheme : where ? `${where} ${header}` : type})`;
  }).join(" and ") || "nothing");
  return ways.length ? [h("h3", null, "Access"), prose(`Needs ${ways.join(", or ")}.`)] : null;
}
const schemaOf = (parameter) => (parameter.content ? parameter.content["application/json"].schema : parameter.schema) || {};
function inside({ path, method, op, id }) {
  const parameters = (op.parameters || []).map(deref);
  const content = (op.requestBody && deref(op.requestBody).content) || {};
  const sent = content["application/json"] || content["multipart/form-data"];
  const answers = Object.entries(op.responses).map(([status, given]) => [status, { ...deref(given), description: given.description || deref(given).description }]);
  const refusals = answers.filter(([status]) => status[0] > "3");
  return h("div", { class: "inside" },
    h("p", { class: "anchor" }, h("a", { href: `#${id}`, "aria-label": `Link to ${op.summary || id}` }, `#${id}`)),
    prose(op.description), access(op),
    parameters.length ? [h("h3", null, "Parameters"), h("div", { class: "rows" }, parameters.map((one) => row(one.name, schemaOf(one), one.required, one.description, [])))] : null,
    sent ? [h("h3", null, "Body ", typeLink(sent.schema)), tree(sent.schema)] : null,
    h("h3", null, "Answers"), h("div", { class: "rows" }, answers.filter(([status]) => status[0] <= "3").map(([status, given]) => answer(status, given))),
    refusals.length ? lazy(h("details", { class: "more" }, h("summary", null, `Refusals (${refusals.length})`)), () => h("div", { class: "rows" }, refusals.map(([status, given]) => answer(status, given)))) : null,
    tryIt(path, method, op));
}
function answer(status, given) {
  const [media, shown] = Object.entries(given.content || {})[0] || [];
  const schema = shown && shown.schema;
  const data = schema && (deref(schema).properties || {}).data;
  const isError = nameOf(schema) === "ErrorResponse";
  const fields = data && deref(data.items || data).properties;
  return h("div", { class: "row" },
    h("div", { class: "head" }, h("span", { class: `status s${status[0]}` }, status),
      schema && !isError ? (data ? ["data: ", typeLink(data)] : h("span", { class: "type" }, media)) : null,
      Object.keys(given.headers || {}).filter((name) => name !== "X-Request-Id").map((name) => h("span", { class: "chip" }, name))),
    prose(given.description),
    fields ? lazy(h("details", null, h("summary", null, "Fields")), () => tree(schema)) : null,
    schema && !isError && media === "application/json" ? lazy(h("details", null, h("summary", null, "Example")), () => h("pre", { tabindex: "0" }, JSON.stringify(example(schema, true), null, 2))) : null);
}
const badge = (method) => h("span", { class: `method m-${method}` }, { options: "opts", delete: "del" }[method] || method);
function operation(entry, prefix = "op-") {
  const { path, method, op, id } = entry;
  return lazy(h("details", { class: op.deprecated ? "op old" : "op", id: prefix + id },
    h("summary", null, h("span", { class: `method m-${method}` }, method), h("span", { class: "path" }, path),
      op.deprecated ? h("span", { class: "chip" }, "deprecated") : null, h("span", { class: "what" }, (op.summary || "").replaceAll("`", "")))), () => inside(entry));
}
function model(name) {
  const schema = state.spec.components.schemas[name];
  const own = groups.find((group) => name === group.tag || name === `${group.tag}Create` || name === `${group.tag}Update`);
  return lazy(h("details", { class: "model", id: `model-${name}` }, h("summary", null, h("span", { class: "path" }, name))),
    () => h("div", { class: "inside" }, own ? h("p", null, h("a", { href: `#tag-${slug(own.tag)}` }, `Operations of ${own.tag}`)) : null, prose(schema.description), tree(schema),
      h("pre", { tabindex: "0", "aria-label": "Example" }, JSON.stringify(example(schema, true), null, 2))));
}

/* -- groups, made when they are near -------------------------------------------------------------- */
const nearby = new IntersectionObserver((seen) => { for (const { isIntersecting, target } of seen) if (isIntersecting) make(target.group); }, { rootMargin: "600px" });
const shownEntries = (group) => group.entries.filter(({ method }) => $("all").checked || !EXTRA.includes(method));
function make(group) {
  if (group.isMade) return;
  group.isMade = true;
  nearby.unobserve(group.section);
  const { section } = group;
  section.style.minHeight = "";
  section.append(...(group.models ? group.models.map(model) : [prose(group.text), shownEntries(group).map((entry) => operation(entry))].flat(2)));
}
function reset(group) {
  group.isMade = false;
  group.section.replaceChildren(h("h2", null, group.tag));
  const count = group.models ? group.models.length : shownEntries(group).length;
  group.section.style.minHeight = `${3 + count * 3.6}rem`;
  nearby.observe(group.section);
}
function addNavigation(group) {
  const list = () => h("ul", null, (group.models ? group.models.map((name) => h("li", null, h("a", { href: `#model-${name}` }, name)))
    : shownEntries(group).map(({ id, method, op, path }) => h("li", null, h("a", { href: `#${id}`, "data-id": id, "aria-current": id === current && "true" }, badge(method), (op.summary || path).replaceAll("`", ""))))));
  group.fold = lazy(h("details", null, h("summary", null, group.tag)), list);
  $("nav").append(group.fold);
}

/* -- the page ------------------------------------------------------------------------------------ */
function collect() {
  const { spec } = state;
  const byTag = new Map((spec.tags || []).map((tag) => [tag.name, { tag: tag.name, text: tag.description, entries: [] }]));
  for (const [path, methods] of Object.entries(spec.paths))
    for (const method of METHODS.filter((one) => methods[one])) {
      const op = methods[method], tag = (op.tags || ["Other"])[0];
      if (!byTag.has(tag)) byTag.set(tag, { tag, entries: [] });
      const id = op.operationId || slug(method + path);
      const entry = { path, method, op, id, text: [path, method, id, op.summary, ...(op.tags || [])].join(" ").toLowerCase() };
      byTag.get(tag).entries.push(entry);
      entries.push(entry);
    }
  groups = [...byTag.values()].filter((group) => group.entries.length);
  const models = Object.keys((spec.components || {}).schemas || {}).filter((name) => !name.endsWith("Filter"));
  if (models.length) groups.push({ tag: "Schemas", entries: [], models });
}
function render() {
  const { spec } = state;
  document.title = `${spec.info.title} · API reference`;
  $("name").textContent = spec.info.title;
  $("version").textContent = spec.info.version;
  $("intro").append(h("h1", null, spec.info.title),
    h("p", { class: "muted" }, `Version ${spec.info.version} · OpenAPI ${spec.openapi} · `, h("a", { href: place }, "openapi.json")), ...prose(spec.info.description));
  collect();
  for (const group of groups) {
    group.section = h("section", { id: group.models ? "models" : `tag-${slug(group.tag)}` });
    group.section.group = group;
    addNavigation(group);
  }
  $("content").replaceChildren(...groups.map((group) => group.section));
  for (const group of groups) reset(group);
  groups[0].fold.open = true;
  $("content").setAttribute("aria-busy", "false");
  startAuth();
  follow();
}
/** Open and show what the address names: `#list_posts`, `#model-Post`, `#tag-Post`. */
function follow() {
  const name = decodeURIComponent(location.hash.slice(1)).replace(/^op-/, "");
  const group = groups.find((one) => one.entries.some(({ id }) => id === name) || (one.models && name.startsWith("model-")) || name === `tag-${slug(one.tag)}`);
  if (!group) return;
  if ($("search").value) { $("search").value = ""; search(); }
  const entry = group.entries.find(({ id }) => id === name);
  if (entry && EXTRA.includes(entry.method) && !$("all").checked) { $("all").checked = true; toggleAll(); }
  make(group);
  const target = $(`op-${name}`) || $(name) || group.section;
  if (target.tagName === "DETAILS") target.open = true;
  current = name;
  group.fold.open = true;
  target.scrollIntoView({ behavior: "instant" });
  for (const link of document.querySelectorAll("#nav [aria-current]")) link.removeAttribute("aria-current");
  document.querySelector(`#nav [data-id="${CSS.escape(name)}"]`)?.setAttribute("aria-current", "true");
}
function search() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  $("content").hidden = $("nav").hidden = words.length > 0;
  $("hits").hidden = !words.length;
  if (!words.length) { $("hits").replaceChildren(); return; }
  const has = (text) => words.every((word) => text.includes(word));
  const found = entries.filter(({ text, method }) => has(text) && ($("all").checked || !EXTRA.includes(method)));
  const models = (groups.at(-1).models || []).filter((name) => has(name.toLowerCase()));
  const shown = found.slice(0, MOST_HITS);
  $("hits").replaceChildren(h("p", { class: "muted", role: "status" }, `${found.length} operations, ${models.length} schemas`),
    ...shown.map((entry) => operation(entry, "hit-")), ...models.slice(0, MOST_HITS).map((name) => h("p", null, h("a", { href: `#model-${name}` }, name))));
}
function toggleAll() {
  for (const group of groups) {
    if (!group.models) reset(group);
    if (group.fold.dataset.made) { group.fold.querySelector("ul")?.remove(); delete group.fold.dataset.made; const was = group.fold.open; group.fold.open = false; group.fold.open = was; }
  }
  search();
}
function theme(name) { document.documentElement.dataset.theme = name; }

const place = document.querySelector("meta[name=openapi]").content;
let kept;
try { kept = localStorage.getItem("theme"); } catch { /* storage may be closed to us */ }
theme(kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
$("theme").addEventListener("click", () => {
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* as above */ }
});
$("authorise").addEventListener("click", openAuth);
$("search").addEventListener("input", search);
$("all").addEventListener("change", toggleAll);
addEventListener("hashchange", follow);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|TEXTAREA|SELECT/.test(document.activeElement.tagName)) { event.preventDefault(); $("search").focus(); }
});
fetch(place, { credentials: "same-origin" })
  .then((found) => { if (!found.ok) throw new Error(`${place} answers ${found.status}`); return found.json(); })
  .then((found) => { state.spec = found; render(); })
  .catch((problem) => { $("content").replaceChildren(h("p", { role: "alert" }, `The description could not be loaded: ${problem.message}`)); });
