// Sending requests from the page: who asks, what is filled in, and what came back.
import { deref, example, h, lazy, nameOf, slug, state } from "./schemas.js";
import { SAMPLES } from "./samples.js";

const KEPT = "maniflex-docs-auth";
const MOST_ANSWERS = 5;

/* -- who asks, once for all operations -------------------------------------------------------- */
const auth = { schemes: {}, headers: [["", ""]], keep: false };
try { Object.assign(auth, JSON.parse(sessionStorage.getItem(KEPT) || "{}")); } catch { /* storage may be closed to us */ }
const isSet = () => Object.values(auth.schemes).some((one) => one.value || one.user) || auth.headers.some(([name]) => name);
function remember() {
  try { if (auth.keep) sessionStorage.setItem(KEPT, JSON.stringify(auth)); else sessionStorage.removeItem(KEPT); } catch { /* as above */ }
  const button = document.getElementById("authorise");
  button.textContent = isSet() ? "Authorised" : "Authorise";
  button.classList.toggle("on", isSet());
}
function schemeFields(name, scheme) {
  const own = (auth.schemes[name] ??= {});
  const field = (key, label, kind) => {
    const id = `auth-${slug(name)}-${key}`;
    return [h("label", { for: id }, label), h("input", { id, type: kind, value: own[key] || "", autocomplete: "off", oninput: (event) => { own[key] = event.target.value; remember(); } })];
  };
  const isBasic = scheme.type === "http" && scheme.scheme === "basic";
  const where = scheme.type === "apiKey" ? `${scheme.in} ${scheme.name}` : `${scheme.scheme || scheme.type}`;
  return h("fieldset", null, h("legend", null, `${name} `, h("span", { class: "chip" }, where)),
    h("div", { class: "grid" }, isBasic ? [field("user", "User", "text"), field("value", "Password", "password")] : field("value", scheme.type === "apiKey" ? "Key" : "Token", "password")));
}
export function openAuth() {
  const schemes = Object.entries((state.spec.components || {}).securitySchemes || {});
  const rows = h("div", { class: "stack" });
  const showHeaders = () => rows.replaceChildren(...auth.headers.map((pair, number) => h("div", { class: "pair" },
    h("input", { "aria-label": "Header", placeholder: "X-User", value: pair[0], oninput: (event) => { pair[0] = event.target.value.trim(); remember(); } }),
    h("input", { "aria-label": "Value", placeholder: "value", value: pair[1], oninput: (event) => { pair[1] = event.target.value; remember(); } }),
    h("button", { type: "button", "aria-label": "Remove this header", onclick: () => { auth.headers.splice(number, 1); remember(); showHeaders(); } }, "×"))));
  showHeaders();
  const keep = h("input", { type: "checkbox", id: "auth-keep", onchange: (event) => { auth.keep = event.target.checked; remember(); } });
  keep.checked = auth.keep;
  const dialog = h("dialog", { "aria-labelledby": "auth-title" },
    h("h2", { id: "auth-title" }, "Authorise"), h("p", { class: "muted" }, "Sent with every request from this page, and to this server alone."),
    schemes.map(([name, scheme]) => schemeFields(name, scheme)),
    h("fieldset", null, h("legend", null, "Any header"), rows,
      h("button", { type: "button", onclick: () => { auth.headers.push(["", ""]); showHeaders(); } }, "Add a header")),
    h("label", { class: "switch" }, keep, "Remember until this tab is closed"),
    h("div", { class: "bar" }, h("button", { type: "button", class: "send", onclick: () => dialog.close() }, "Done"),
      h("button", { type: "button", onclick: () => { Object.assign(auth, { schemes: {}, headers: [["", ""]] }); remember(); dialog.close(); } }, "Forget all")));
  dialog.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target.tagName === "INPUT") { event.preventDefault(); dialog.close(); } });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
export const startAuth = remember;

function applyAuth(headers, query) {
  const base64 = (value) => btoa(String.fromCharCode(...new TextEncoder().encode(value)));
  for (const [name, own] of Object.entries(auth.schemes)) {
    const scheme = ((state.spec.components || {}).securitySchemes || {})[name];
    if (!scheme || !(own.value || own.user)) continue;
    if (scheme.type === "apiKey" && scheme.in === "query") query.append(scheme.name, own.value);
    else if (scheme.type === "apiKey" && scheme.in === "cookie") document.cookie = `${scheme.name}=${encodeURIComponent(own.value)}; path=/; samesite=strict`;
    else if (scheme.type === "apiKey") headers[scheme.name] = own.value;
    else if (scheme.scheme === "basic") headers.Authorization = `Basic ${base64(`${own.user || ""}:${own.value || ""}`)}`;
    else headers.Authorization = `Bearer ${own.value}`;
  }
  for (const [name, value] of auth.headers) if (name) headers[name] = value;
}

/* -- inputs of parameters: each gives the texts that are sent ---------------------------------- */
function select(id, values, { empty = "–", required = false } = {}) {
  return h("select", { id, required }, h("option", { value: "" }, empty), values.map((value) => h("option", { value: String(value) }, String(value))));
}
function plainInput(id, parameter, schema) {
  if (schema.enum) return select(id, schema.enum, parameter);
  if (schema.type === "boolean") return select(id, [true, false], parameter);
  const hint = schema.default !== undefined ? String(schema.default) : parameter.content ? "JSON" : schema.format || (schema.type === "string" ? "text" : schema.type) || parameter.in;
  const kind = schema.type === "integer" ? "numeric" : undefined;
  return h("input", { id, placeholder: hint, required: parameter.required, inputmode: kind, autocomplete: "off" });
}
/** The operators of each field, as the description of the parameter lists them. */
function operatorsOf(parameter) {
  const found = new Map();
  for (const line of (parameter.description || "").split("\n")) {
    const parts = /^- (.+?): (.+)$/.exec(line);
    if (!parts) continue;
    const names = (part) => [...part.matchAll(/`([^`]+)`/g)].map((match) => match[1]);
    for (const field of names(parts[1])) found.set(field, names(parts[2]));
  }
  return found;
}
const NO_VALUE = ["is_null", "not_null"];
function filterRow(id, operators, fields) {
  const listId = `${id}-fields`;
  const all = [...new Set([...operators.values()].flat())];
  const field = h("input", { id, list: listId, placeholder: "field", autocomplete: "off" });
  const operator = h("select", { "aria-label": "Operator" });
  const place = h("span", { class: "grow" });
  let value;
  const refresh = () => {
    const before = operator.value;
    operator.replaceChildren(...(operators.get(field.value) || all).map((one) => h("option", {}, one)));
    if ([...operator.options].some((one) => one.value === before)) operator.value = before;
    const members = (deref(fields[field.value]) || {}).enum;
    const old = value ? value.value : "";
    value = members && ["eq", "neq"].includes(operator.value) ? select("", members, { empty: "value" }) : h("input", { placeholder: "value", autocomplete: "off" });
    value.setAttribute("aria-label", "Value");
    value.value = old;
    value.hidden = NO_VALUE.includes(operator.value);
    place.replaceChildren(value);
  };
  field.addEventListener("change", refresh);
  operator.addEventListener("change", refresh);
  refresh();
  const element = h("div", { class: "pair" }, field, h("datalist", { id: listId }, [...operators.keys()].map((one) => h("option", { value: one }))), operator, place);
  return { element, read: () => (field.value ? [field.value, operator.value, ...(NO_VALUE.includes(operator.value) ? [] : [value.value])].join(":") : "") };
}
function parameterInput(op, parameter, fields) {
  const schema = deref(parameter.schema || {});
  const id = `in-${slug(op.operationId)}-${slug(parameter.name)}`;
  const operators = operatorsOf(parameter);
  const isFilter = parameter.name.startsWith("filter") && schema.type === "array";
  if (schema.type !== "array") {
    const element = plainInput(id, parameter, schema);
    return { id, element, read: () => (element.value === "" ? [] : [element.value]) };
  }
  const rows = [], box = h("div", { class: "stack" });
  const shared = operatorsOf((op.parameters || []).map(deref).find((one) => one.name === "filter") || {});
  const add = () => {
    const own = rows.length ? `${id}-${rows.length}` : id;
    if (isFilter) rows.push(filterRow(own, operators.size ? operators : shared, fields));
    else { const element = plainInput(own, { ...parameter, required: false }, deref(schema.items || {})); element.setAttribute("aria-label", parameter.name); rows.push({ element, read: () => element.value }); }
    box.insertBefore(rows.at(-1).element, more);
  };
  const more = h("button", { type: "button", class: "add", "aria-label": `Another ${parameter.name}`, onclick: () => { add(); rows.at(-1).element.querySelector?.("input")?.focus(); } }, "+ another");
  box.append(more);
  add();
  return { id, element: box, read: () => rows.map((one) => one.read()).filter((text) => text !== "") };
}

/* -- the body: JSON, a form with files, or a file ----------------------------------------------- */
function jsonBody(schema) {
  const area = h("textarea", { "aria-label": "Body", spellcheck: "false" });
  const wrong = h("p", { class: "status s4", role: "status" });
  const fill = (whole) => { area.value = JSON.stringify(example(schema, whole), null, 2); check(); };
  const check = () => { try { JSON.parse(area.value); wrong.textContent = ""; } catch (problem) { wrong.textContent = problem.message; } };
  area.addEventListener("input", check);
  fill(false);
  const element = h("div", null, area, wrong, h("button", { type: "button", class: "add", onclick: () => fill(true) }, "All fields"));
  return { element, read: () => ({ body: area.value, type: "application/json" }) };
}
function formBody(schema, id) {
  const found = deref(schema), required = found.required || [];
  const inputs = Object.entries(found.properties || {}).sort(([a], [b]) => required.includes(b) - required.includes(a)).map(([name, raw]) => {
    const field = deref(raw), item = field.type === "array" ? deref(field.items) : field;
    const isFile = item.contentMediaType || item.format === "binary";
    const own = `${id}-${slug(name)}`;
    const element = isFile ? h("input", { id: own, type: "file", multiple: field.type === "array" }) : plainInput(own, { in: "field", required: required.includes(name) }, field);
    return { name, element, own, isFile };
  });
  const element = h("div", { class: "grid" }, inputs.map(({ name, element: input, own }) => [h("label", { for: own }, name), input]));
  const read = () => ({ parts: inputs.flatMap(({ name, element: input, isFile }) => (isFile ? [...input.files].map((one) => [name, one]) : input.value === "" ? [] : [[name, input.value]])) });
  return { element, read };
}
function fileBody(id, media) {
  const input = h("input", { id, type: "file", "aria-label": "Body" });
  return { element: input, read: () => ({ file: input.files[0], type: input.files[0]?.type || media }) };
}
function bodyInput(op, content) {
  const id = `body-${slug(op.operationId)}`;
  const kinds = Object.entries(content || {}).map(([media, { schema }]) => [media,
    media === "application/json" ? jsonBody(schema) : media === "multipart/form-data" ? formBody(schema, id) : fileBody(id, media)]);
  if (!kinds.length) return null;
  let at = 0;
  const place = h("div", null, kinds[0][1].element);
  const chooser = kinds.length > 1 ? h("select", { "aria-label": "Kind of body", class: "kind", onchange: (event) => { at = event.target.selectedIndex; place.replaceChildren(kinds[at][1].element); } },
    kinds.map(([media]) => h("option", {}, media))) : null;
  return { element: h("div", null, h("h3", null, "Body ", chooser), place), read: () => kinds[at][1].read() };
}

/* -- sending ------------------------------------------------------------------------------------ */
function root() {
  const url = state.spec.servers && state.spec.servers[0] && state.spec.servers[0].url;
  return url && url.startsWith("/") && !url.startsWith("//") ? url.replace(/\/$/, "") : "";
}
function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}
function gather(path, method, inputs, body) {
  const query = new URLSearchParams(), headers = {};
  let address = path;
  for (const { parameter, read } of inputs)
    for (const text of read()) {
      if (parameter.in === "path") address = address.replace(`{${parameter.name}}`, encodeURIComponent(text));
      else if (parameter.in === "header") headers[parameter.name] = text;
      else query.append(parameter.name, text);
    }
  applyAuth(headers, query);
  const sent = body ? body.read() : {};
  if (sent.type) headers["Content-Type"] = sent.type;
  const url = new URL(root() + address + (String(query) ? `?${query}` : ""), location.href).href;
  return { method: method.toUpperCase(), url, headers, body: sent.body, parts: sent.parts, file: sent.file };
}
async function show(answer, started) {
  const bytes = await answer.blob();
  const type = answer.headers.get("content-type") || "";
  const isText = /json|text|xml|javascript/.test(type) || !bytes.size;
  const text = isText ? await bytes.text() : "";
  const time = Math.round(performance.now() - started);
  const head = h("div", { class: `status s${String(answer.status)[0]}` }, `${answer.status} ${answer.statusText} · ${time} ms · ${bytes.size} bytes`);
  const headers = lazy(h("details", { class: "more" }, h("summary", null, "Headers")), () => h("pre", { tabindex: "0" }, [...answer.headers].map(([name, value]) => `${name}: ${value}`).join("\n")));
  const content = isText ? h("pre", { tabindex: "0", "aria-label": "Answer" }, pretty(text)) : h("a", { href: URL.createObjectURL(bytes), download: "answer" }, `Download (${type || "bytes"})`);
  return h("div", { class: "answer" }, head, content, headers);
}
function copyButton(read) {
  const button = h("button", { type: "button", class: "add", onclick: async () => { await navigator.clipboard?.writeText(read()); button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); } }, "Copy");
  return button;
}
function samples(request) {
  const code = h("code"), names = Object.keys(SAMPLES);
  let name = names[0];
  const update = () => { code.textContent = SAMPLES[name](request()); };
  const tabs = names.map((one) => h("button", { type: "button", "aria-pressed": String(one === name), onclick: () => { name = one; for (const tab of tabs) tab.setAttribute("aria-pressed", String(tab.textContent === one)); update(); } }, one));
  const element = h("div", { class: "samples" }, h("div", { class: "bar" }, tabs, copyButton(() => code.textContent)), h("pre", { tabindex: "0", "aria-label": "Code sample" }, code));
  return { element, update };
}
export function tryIt(path, method, op) {
  const answer = deref(Object.entries(op.responses).find(([status]) => status[0] === "2")?.[1]);
  const data = deref(((answer.content || {})["application/json"] || {}).schema);
  const item = deref((data.properties || {}).data || {});
  const fields = deref(item.items || item).properties || {};
  const inputs = (op.parameters || []).map(deref).filter((one) => one.in !== "cookie").map((parameter) => ({ parameter, ...parameterInput(op, parameter, fields) }));
  const body = bodyInput(op, op.requestBody && deref(op.requestBody).content);
  const request = () => gather(path, method, inputs, body);
  const code = samples(request);
  const told = h("span", { class: "muted", role: "status", "aria-live": "polite" });
  const answers = h("div", { class: "answers" });
  const button = h("button", { class: "send", type: "submit" }, "Send");
  const send = async (event) => {
    event.preventDefault();
    const { method: verb, url, headers, body: text, parts, file } = request();
    const form = parts && new FormData();
    for (const [name, value] of parts || []) form.append(name, value);
    button.disabled = true;
    told.textContent = "sending …";
    const started = performance.now();
    try {
      const result = await show(await fetch(url, { method: verb, headers, body: form || file || text }), started);
      answers.prepend(result);
      told.textContent = "";
    } catch (problem) {
      answers.prepend(h("div", { class: "answer" }, h("div", { class: "status s5" }, "The request failed."), h("pre", { tabindex: "0" }, String(problem))));
      told.textContent = "";
    }
    while (answers.children.length > MOST_ANSWERS) answers.lastChild.remove();
    button.disabled = false;
    code.update();
  };
  const form = h("form", { onsubmit: send, oninput: () => code.update(), onchange: () => code.update() },
    inputs.length ? h("div", { class: "grid" }, inputs.map(({ parameter, id, element }) => [h("label", { for: id }, parameter.name), element])) : null,
    body && body.element, h("div", { class: "bar" }, button, told));
  code.update();
  return h("div", { class: "try" }, h("h3", null, "Try it"), form, code.element, answers);
}
