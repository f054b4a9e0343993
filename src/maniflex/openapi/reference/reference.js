"use strict";
const $ = (id) => document.getElementById(id);
const METHODS = ["get", "post", "put", "patch", "delete", "head", "options"];
let spec;

/* Everything of the description goes onto the page as text, never as markup. */
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}
function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) =>
    part.length > 2 && part[0] === "`" ? h("code", null, part.slice(1, -1))
      : part.length > 4 && part.startsWith("**") ? h("strong", null, part.slice(2, -2)) : part);
}
function prose(text) {
  return (text || "").split(/\n\s*\n/).filter(Boolean).map((block) => {
    const lines = block.split("\n");
    if (lines.every((line) => /^[-*] /.test(line)))
      return h("ul", null, lines.map((line) => h("li", null, inline(line.slice(2)))));
    const title = /^#{1,4} (.*)/.exec(lines[0]);
    return title ? h("div", null, h("h3", null, inline(title[1])), prose(lines.slice(1).join("\n")))
      : h("p", null, inline(block));
  });
}
function deref(node) {
  for (let hops = 0; node && node.$ref && hops < 20; hops++)
    node = node.$ref.slice(2).split("/").reduce((at, key) => at && at[key.replace(/~1/g, "/").replace(/~0/g, "~")], spec);
  return node || {};
}
const nameOf = (schema) => (schema && schema.$ref ? schema.$ref.split("/").pop() : "");
const slug = (text) => text.replace(/[^A-Za-z0-9]+/g, "-");

/* -- schemas ------------------------------------------------------------------------------- */
function typeOf(schema) {
  if (!schema) return "any";
  if (schema.$ref) return nameOf(schema).endsWith("Filter") ? "field:operator:value" : nameOf(schema);
  if (schema.anyOf || schema.oneOf) return [...new Set((schema.anyOf || schema.oneOf).map(typeOf))].join(" | ");
  if (schema.type === "array") return `${typeOf(schema.items)}[]`;
  const kind = [].concat(schema.type || "any").join(" | ");
  return schema.format && !["double", "cursor"].includes(schema.format) ? `${kind} (${schema.format})` : kind;
}
const LARGE = 9e15;
function rules(schema) {
  const found = [];
  const at = (name) => schema[name] !== undefined;
  if (at("minimum") && Math.abs(schema.minimum) < LARGE) found.push(`≥ ${schema.minimum}`);
  if (at("maximum") && Math.abs(schema.maximum) < LARGE) found.push(`≤ ${schema.maximum}`);
  if (at("minLength")) found.push(`at least ${schema.minLength} characters`);
  if (at("maxLength")) found.push(`at most ${schema.maxLength} characters`);
  if (at("pattern") && schema.pattern.length < 40) found.push(`matches ${schema.pattern}`);
  if (at("default")) found.push(`default ${JSON.stringify(schema.default)}`);
  if (schema.readOnly) found.push("read only");
  if (schema.writeOnly) found.push("write only");
  return found;
}
function choices(schema) {
  const values = schema.enum || (schema.items && deref(schema.items).enum);
  if (!values) return null;
  const shown = values.filter((value) => !/:(asc|desc)$/.test(value)).slice(0, 40);
  return h("p", null, "One of ", shown.map((value, i) => [i ? ", " : "", h("code", null, String(value))]).flat());
}
function row(name, schema, required, description, seen) {
  const inner = schema.type === "array" ? schema.items : schema;
  const target = deref(inner);
  const shapes = (target.anyOf || [target]).map(deref).filter((shape) => shape.properties);
  const nested = shapes.length && !seen.includes(nameOf(inner) || name);
  return h("div", { class: "row" },
    h("div", { class: "head" }, h("span", { class: "name" }, name), h("span", { class: "type" }, typeOf(schema)),
      required ? h("span", { class: "must" }, "required") : null,
      rules(schema).map((rule) => h("span", { class: "chip" }, rule))),
    prose(description || schema.description), choices(schema),
    nested ? lazy(h("details", null, h("summary", null, `Fields of ${nameOf(inner) || name}`)),
      () => shapes.flatMap((shape, i) => [i ? h("p", { class: "muted" }, "or") : "", tree(shape, seen.concat(nameOf(inner) || name))])) : null);
}
function tree(schema, seen = []) {
  schema = deref(schema);
  if (schema.type === "array") return tree(schema.items, seen);
  const required = schema.required || [];
  const fields = Object.entries(schema.properties || {});
  if (!fields.length) return h("p", { class: "muted" }, typeOf(schema));
  return h("div", { class: "rows" }, fields.map(([name, field]) =>
    row(name, field, required.includes(name), null, seen)));
}
function example(schema, depth = 0) {
  const found = deref(schema);
  if (found.default !== undefined) return found.default;
  if (found.enum) return found.enum[0];
  if (found.anyOf) return example(found.anyOf[0], depth);
  const kind = [].concat(found.type || "object")[0];
  if (kind === "object")
    return depth > 3 ? {} : Object.fromEntries(Object.entries(found.properties || {})
      .filter(([name]) => !found.required || found.required.includes(name))
      .map(([name, field]) => [name, example(field, depth + 1)]));
  if (kind === "array") return [];
  if (kind === "integer" || kind === "number") return Math.max(0, found.minimum > -LARGE ? found.minimum : 0);
  if (kind === "boolean") return false;
  return { "date-time": "2026-01-31T12:00:00Z", date: "2026-01-31", uuid: crypto.randomUUID() }[found.format] || "text";
}

/* -- operations ---------------------------------------------------------------------------- */
function lazy(details, make) {
  details.addEventListener("toggle", () => {
    if (details.open && !details.dataset.made) {
      details.dataset.made = "yes";
      details.append(...make());
    }
  });
  return details;
}
function badge(method) { return h("span", { class: `method m-${method}` }, method === "options" ? "opts" : method === "delete" ? "del" : method); }

function operation(path, method, op) {
  const id = `op-${slug(op.operationId || method + path)}`;
  const details = h("details", { class: op.deprecated ? "op old" : "op", id, "data-method": method,
    "data-text": [path, method, op.operationId, op.summary, (op.tags || []).join(" ")].join(" ").toLowerCase() },
  h("summary", null, h("span", { class: `method m-${method}` }, method), h("span", { class: "path" }, path),
    op.deprecated ? h("span", { class: "chip" }, "deprecated") : null, h("span", { class: "what" }, op.summary || "")));
  return lazy(details, () => [h("div", { class: "inside" }, body(path, method, op))]);
}
/* Which proof of identity a caller needs: one of several, or none. */
const needs = (op) => op.security || spec.security || [];
const schemeOf = (name) => ((spec.components.securitySchemes || {})[name]) || {};
function access(op) {
  const ways = needs(op).map((way) => Object.keys(way).map((name) => {
    const { type, scheme, in: where, name: header } = schemeOf(name);
    return `\`${name}\` (${type === "http" ? scheme : where ? `${where} ${header}` : type})`;
  }).join(" and ") || "nothing");
  return ways.length ? [h("h3", null, "Access"), prose(`Needs ${ways.join(", or ")}.`)].flat() : null;
}
/* The schema of a parameter whose text is JSON. */
const inJson = (parameter) => parameter.content && parameter.content["application/json"].schema;
function body(path, method, op) {
  const parameters = (op.parameters || []).map(deref);
  const content = op.requestBody && deref(op.requestBody).content;
  const sent = content && content["application/json"];
  return [
    prose(op.description),
    access(op),
    parameters.length ? [h("h3", null, "Parameters"), h("div", { class: "rows" }, parameters.map((p) =>
      row(p.name, inJson(p) || p.schema || {}, p.required, p.description, [])))] : null,
    sent ? [h("h3", null, "Body ", h("span", { class: "chip" }, nameOf(sent.schema) || "JSON")), tree(sent.schema)] : null,
    h("h3", null, "Responses"),
    h("div", { class: "rows" }, Object.entries(op.responses).map(([status, given]) => response(status, { ...deref(given), description: given.description || deref(given).description }))),
    tryIt(path, method, op, parameters, sent),
  ].flat(3);
}
function response(status, given) {
  const [media, shown] = Object.entries(given.content || {})[0] || [];
  const schema = shown && shown.schema;
  const data = schema && deref(schema).properties && deref(schema).properties.data;
  const error = nameOf(schema) === "ErrorResponse";
  return h("div", { class: "row" },
    h("div", { class: "head" }, h("span", { class: `status s${status[0]}` }, status),
      schema && !error ? h("span", { class: "type" }, data ? `data: ${typeOf(data)}` : media) : null,
      Object.keys(given.headers || {}).filter((name) => name !== "X-Request-Id").map((name) => h("span", { class: "chip" }, name))),
    prose(given.description),
    data && deref(data.items || data).properties
      ? lazy(h("details", null, h("summary", null, "Fields")), () => [tree(schema)]) : null);
}

/* -- try it -------------------------------------------------------------------------------- */
function tryIt(path, method, op, parameters, sent) {
  const keys = needs(op).flatMap(Object.keys).map(schemeOf).filter((scheme) => scheme.in === "header")
    .map((scheme) => ({ name: scheme.name, in: "header", schema: {} }));
  const inputs = parameters.filter((parameter) => parameter.in !== "cookie").concat(keys).map((parameter) => {
    const id = `in-${slug(op.operationId)}-${slug(parameter.name)}`;
    const field = h("input", { id, placeholder: parameter.schema && parameter.schema.default !== undefined
      ? String(parameter.schema.default) : inJson(parameter) ? "JSON" : parameter.in, required: parameter.required, autocomplete: "off" });
    return { parameter, field, label: h("label", { for: id }, parameter.name) };
  });
  const key = h("input", { id: `auth-${slug(op.operationId)}`, placeholder: "Bearer …", autocomplete: "off", value: tryIt.key || "" });
  const text = sent ? h("textarea", { "aria-label": "Body", spellcheck: "false" }) : null;
  if (text) text.value = JSON.stringify(example(sent.schema), null, 2);
  const told = h("span", { class: "muted", role: "status", "aria-live": "polite" });
  const output = h("pre", { hidden: true, tabindex: "0", "aria-label": "Answer" });
  const button = h("button", { class: "send", type: "submit" }, "Send");
  const send = async (event) => {
    event.preventDefault();
    let address = path;
    const query = new URLSearchParams();
    const headers = {};
    for (const { parameter, field } of inputs) {
      if (field.value === "") continue;
      if (parameter.in === "path") address = address.replace(`{${parameter.name}}`, encodeURIComponent(field.value));
      else if (parameter.in === "header") headers[parameter.name] = field.value;
      else query.append(parameter.name, field.value);
    }
    if (key.value) { headers.Authorization = key.value; tryIt.key = key.value; }
    if (text) headers["Content-Type"] = "application/json";
    button.disabled = true;
    const started = performance.now();
    try {
      const answer = await fetch(root() + address + (String(query) ? `?${query}` : ""),
        { method: method.toUpperCase(), headers, body: text ? text.value : undefined });
      const content = await answer.text();
      told.className = `status s${String(answer.status)[0]}`;
      told.textContent = `${answer.status} ${answer.statusText} · ${Math.round(performance.now() - started)} ms`;
      output.textContent = pretty(content) || [...answer.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
    } catch (problem) {
      told.className = "status s5";
      told.textContent = "The request failed.";
      output.textContent = String(problem);
    }
    output.hidden = false;
    button.disabled = false;
  };
  return h("details", { class: "more" }, h("summary", null, "Try it"),
    h("form", { onsubmit: send }, h("div", { class: "bar" }),
      h("div", { class: "grid" }, inputs.map(({ label, field }) => [label, field]).flat(),
        h("label", { for: key.id }, "Authorization"), key),
      text ? [h("h3", null, "Body"), text] : [],
      h("div", { class: "bar" }, button, told)), output);
}
function root() {
  const url = spec.servers && spec.servers[0] && spec.servers[0].url;
  return url && url.startsWith("/") && !url.startsWith("//") ? url.replace(/\/$/, "") : "";
}
function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

/* -- the page ------------------------------------------------------------------------------ */
function render() {
  document.title = `${spec.info.title} · API reference`;
  $("name").textContent = spec.info.title;
  $("version").textContent = spec.info.version;
  $("intro").append(h("h1", null, spec.info.title),
    h("p", { class: "muted" }, `Version ${spec.info.version} · OpenAPI ${spec.openapi} · `,
      h("a", { href: place }, "openapi.json")), ...prose(spec.info.description));
  const groups = new Map((spec.tags || []).map((tag) => [tag.name, { text: tag.description, list: [] }]));
  for (const [path, methods] of Object.entries(spec.paths))
    for (const method of METHODS)
      if (methods[method]) {
        const tag = (methods[method].tags || ["Other"])[0];
        if (!groups.has(tag)) groups.set(tag, { list: [] });
        groups.get(tag).list.push([path, method, methods[method]]);
      }
  const content = [];
  for (const [tag, group] of groups) {
    if (!group.list.length) continue;
    content.push(h("section", { id: `tag-${slug(tag)}` }, h("h2", null, tag), prose(group.text),
      group.list.map(([path, method, op]) => operation(path, method, op))));
    $("nav").append(h("div", null, h("h2", null, tag), h("ul", null, group.list.map(([path, method, op]) => {
      const id = `op-${slug(op.operationId || method + path)}`;
      return h("li", { "data-for": id }, h("a", { href: `#${id}`, onclick: () => { $(id).open = true; } },
        badge(method), op.summary || path));
    }))));
  }
  const models = Object.entries(spec.components.schemas).filter(([name]) => !name.endsWith("Filter"));
  content.push(h("section", { id: "models" }, h("h2", null, "Schemas"), models.map(([name, schema]) =>
    lazy(h("details", { class: "model", id: `model-${name}`, "data-text": name.toLowerCase() },
      h("summary", null, h("span", { class: "path" }, name))), () => [h("div", { class: "inside" }, prose(schema.description), tree(schema))]))));
  $("content").replaceChildren(...content);
  $("content").setAttribute("aria-busy", "false");
  filter();
  const wanted = location.hash && $(location.hash.slice(1));
  if (wanted) { wanted.open = true; wanted.scrollIntoView(); }
}
function filter() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const item of document.querySelectorAll("details.op, details.model")) {
    const extra = ["head", "options"].includes(item.dataset.method) && !$("all").checked;
    item.hidden = extra || !words.every((word) => item.dataset.text.includes(word));
    const link = document.querySelector(`[data-for="${item.id}"]`);
    if (link) link.hidden = item.hidden;
  }
  for (const group of document.querySelectorAll("#content > section, #nav > div"))
    group.hidden = ![...group.querySelectorAll("details.op, details.model, li")].some((item) => !item.hidden);
}
function theme(name) {
  document.documentElement.dataset.theme = name;
}

const place = document.querySelector("meta[name=openapi]").content;
let kept;
try { kept = localStorage.getItem("theme"); } catch { /* storage may be closed to us */ }
theme(kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
$("theme").addEventListener("click", () => {
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* as above */ }
});
$("search").addEventListener("input", filter);
$("all").addEventListener("change", filter);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); $("search").focus(); }
});
fetch(place, { credentials: "same-origin" })
  .then((answer) => { if (!answer.ok) throw new Error(`${place} answers ${answer.status}`); return answer.json(); })
  .then((found) => { spec = found; render(); })
  .catch((problem) => { $("content").replaceChildren(h("p", { role: "alert" }, `The description could not be loaded: ${problem.message}`)); });
