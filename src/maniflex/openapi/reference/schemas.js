// What the description says, as elements: texts, types, fields, examples. Everything is text, never markup.
export const state = { spec: null };
export const LARGE = 1e9;  // a bound that tells nothing

export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false && value !== null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(4).filter((child) => child !== null && child !== undefined && child !== "" && child !== false));
  return element;
}
function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|\[[^\]]+\]\(https?:[^)\s]+\))/).map((part) => {
    const link = /^\[([^\]]+)\]\((https?:[^)\s]+)\)$/.exec(part);
    if (link) return h("a", { href: link[2], rel: "noreferrer noopener" }, link[1]);
    if (part.length > 2 && part[0] === "`") return h("code", null, part.slice(1, -1));
    return part.length > 4 && part.startsWith("**") ? h("strong", null, part.slice(2, -2)) : part;
  });
}
/** Markdown, as far as descriptions need it: paragraphs, headings, lists and blocks of code. */
export function prose(text) {
  return (text || "").split(/^(```[^\n]*\n[\s\S]*?\n```)[ \t]*$/m).flatMap((part) => {
    const code = /^```[^\n]*\n([\s\S]*?)\n```$/.exec(part);
    return code ? [h("pre", { tabindex: "0" }, code[1])] : blocks(part);
  });
}
function blocks(text) {
  return text.split(/\n\s*\n/).map((block) => block.trim()).filter(Boolean).map((block) => {
    const lines = block.split("\n");
    if (lines.every((line) => /^[-*] /.test(line)))
      return h("ul", null, lines.map((line) => h("li", null, inline(line.slice(2)))));
    if (lines.every((line) => /^\d+[.)] /.test(line)))
      return h("ol", null, lines.map((line) => h("li", null, inline(line.replace(/^\d+[.)] /, "")))));
    const title = /^#{1,4} (.*)/.exec(lines[0]);
    return title ? h("div", null, h("h3", null, inline(title[1])), prose(lines.slice(1).join("\n")))
      : h("p", null, inline(block));
  });
}
export function deref(node) {
  for (let hops = 0; node && node.$ref && hops < 20; hops++)
    node = node.$ref.slice(2).split("/").reduce((at, key) => at && at[key.replace(/~1/g, "/").replace(/~0/g, "~")], state.spec);
  return node || {};
}
export const nameOf = (schema) => (schema && schema.$ref ? schema.$ref.split("/").pop() : "");
export const slug = (text) => text.replace(/[^A-Za-z0-9_]+/g, "-");

/** Made when it is opened for the first time. */
export function lazy(details, make) {
  details.addEventListener("toggle", () => {
    if (details.open && !details.dataset.made) {
      details.dataset.made = "yes";
      details.append(...[make()].flat());
    }
  });
  return details;
}

export function typeOf(schema) {
  if (!schema) return "any";
  if (schema.$ref) return nameOf(schema).endsWith("Filter") ? "field:operator:value" : nameOf(schema);
  if (schema.anyOf || schema.oneOf) return [...new Set((schema.anyOf || schema.oneOf).map(typeOf))].join(" | ");
  if (schema.type === "array") return `${typeOf(schema.items)}[]`;
  const kind = [].concat(schema.type || "any").filter((one) => one !== "null").join(" | ");
  return schema.format && !["double", "cursor"].includes(schema.format) ? `${kind} (${schema.format})` : kind;
}
/** The type, as a link where it is a model of the description. */
export function typeLink(schema) {
  const name = nameOf(schema && schema.type === "array" ? schema.items : schema);
  const text = typeOf(schema);
  return name && !name.endsWith("Filter") ? h("a", { class: "type", href: `#model-${name}` }, text) : h("span", { class: "type" }, text);
}
function rules(schema) {
  const found = [];
  const at = (name) => schema[name] !== undefined;
  if ([].concat(schema.type || []).includes("null")) found.push("nullable");
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
  return h("p", null, "One of ", shown.map((value, i) => [i ? ", " : "", h("code", null, String(value))]));
}
export function row(name, schema, required, description, seen) {
  const inner = schema.type === "array" ? schema.items : schema;
  const target = deref(inner);
  const shapes = (target.anyOf || [target]).map(deref).filter((shape) => shape.properties);
  const nested = shapes.length && !seen.includes(nameOf(inner) || name);
  return h("div", { class: "row" },
    h("div", { class: "head" }, h("span", { class: "name" }, name), typeLink(schema),
      required ? h("span", { class: "must" }, "required") : null,
      rules(schema).map((rule) => h("span", { class: "chip" }, rule))),
    prose(description || schema.description), choices(schema),
    nested ? lazy(h("details", null, h("summary", null, `Fields of ${nameOf(inner) || name}`)),
      () => shapes.flatMap((shape, i) => [i ? h("p", { class: "muted" }, "or") : "", tree(shape, seen.concat(nameOf(inner) || name))])) : null);
}
export function tree(schema, seen = []) {
  schema = deref(schema);
  if (schema.type === "array") return tree(schema.items, seen);
  const required = schema.required || [];
  const fields = Object.entries(schema.properties || {});
  if (!fields.length) return h("p", { class: "muted" }, typeOf(schema));
  return h("div", { class: "rows" }, fields.map(([name, field]) => row(name, field, required.includes(name), null, seen)));
}

/** A value that fits a schema; with `whole` every field, else the required ones (and where there are none, the first). */
export function example(schema, whole = false, depth = 0) {
  const found = deref(schema);
  if (found.example !== undefined) return found.example;
  if (found.examples && found.examples.length) return found.examples[0];
  if (found.default !== undefined && found.default !== null) return found.default;
  if (found.enum) return found.enum[0];
  if (found.const !== undefined) return found.const;
  const way = (found.anyOf || found.oneOf || [])[0];
  if (way) return example(way, whole, depth);
  const kind = [].concat(found.type || "object").find((one) => one !== "null");
  if (kind === "object") return depth > 4 ? {} : fieldsOf(found, whole, depth);
  if (kind === "array") return whole && depth < 3 && found.items ? [example(found.items, whole, depth + 1)] : [];
  if (kind === "integer" || kind === "number") return Math.max(0, found.minimum > -LARGE ? found.minimum : 0);
  if (kind === "boolean") return false;
  const texts = { "date-time": "2026-01-31T12:00:00Z", date: "2026-01-31", decimal: "1.00", email: "ada@example.org", uuid: "0197b3a0-0000-7000-8000-000000000000" };
  return texts[found.format] || "text".padEnd(Math.min(found.minLength || 0, 40), "x");
}
function fieldsOf(schema, whole, depth) {
  const required = schema.required || [];
  const names = Object.keys(schema.properties || {});
  const first = names.filter((name) => required.includes(name));
  const rest = names.filter((name) => !required.includes(name));
  const chosen = whole ? [...first, ...rest] : first.length ? first : rest.slice(0, depth ? 0 : 2);
  return Object.fromEntries(chosen.map((name) => [name, example(schema.properties[name], whole, depth + 1)]));
}
