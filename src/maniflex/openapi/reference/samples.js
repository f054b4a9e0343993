// A request as commands and code that send the same.
const quote = (text) => `'${String(text).replaceAll("'", "'\\''")}'`;
const text = (value) => JSON.stringify(String(value));
const same = (headers, indent) => Object.entries(headers).map(([name, value]) => `${indent}${text(name)}: ${text(value)},`).join("\n");

function curl({ method, url, headers, body, parts, file }) {
  const lines = [`curl ${method === "GET" ? "" : `-X ${method} `}${quote(url)}`];
  for (const [name, value] of Object.entries(headers)) lines.push(`-H ${quote(`${name}: ${value}`)}`);
  for (const [name, value] of parts || []) lines.push(value instanceof File ? `-F ${quote(`${name}=@${value.name}`)}` : `--form-string ${quote(`${name}=${value}`)}`);
  if (file) lines.push(`--data-binary ${quote(`@${file.name}`)}`);
  if (body !== undefined) lines.push(`--data-raw ${quote(body)}`);
  return lines.join(" \\\n  ");
}
function python({ method, url, headers, body, parts, file }) {
  const lines = ["import httpx", "", "response = httpx.request(", `    "${method}",`, `    ${text(url)},`];
  if (Object.keys(headers).length) lines.push("    headers={", same(headers, "        "), "    },");
  if (parts) {
    const one = ([name, value], shown) => `        (${text(name)}, ${shown(value)}),`;
    const texts = parts.filter(([, value]) => !(value instanceof File)), files = parts.filter(([, value]) => value instanceof File);
    if (texts.length) lines.push("    data={", ...texts.map(([name, value]) => `        ${text(name)}: ${text(value)},`), "    },");
    if (files.length) lines.push("    files=[", ...files.map((pair) => one(pair, (value) => `open(${text(value.name)}, "rb")`)), "    ],");
  }
  if (file) lines.push(`    content=open(${text(file.name)}, "rb"),`);
  if (body !== undefined) lines.push(`    content=${text(body)},`);
  return [...lines, ")", "print(response.status_code, response.text)"].join("\n");
}
function javascript({ method, url, headers, body, parts, file }) {
  const lines = [];
  if (parts) {
    lines.push("const form = new FormData();");
    for (const [name, value] of parts) lines.push(value instanceof File ? `form.append(${text(name)}, files[${text(value.name)}]);` : `form.append(${text(name)}, ${text(value)});`);
  }
  lines.push(`const response = await fetch(${text(url)}, {`, `  method: "${method}",`);
  if (Object.keys(headers).length) lines.push("  headers: {", same(headers, "    "), "  },");
  if (parts) lines.push("  body: form,");
  if (file) lines.push(`  body: files[${text(file.name)}],`);
  if (body !== undefined) lines.push(`  body: ${text(body)},`);
  return [...lines, "});", "console.log(response.status, await response.text());"].join("\n");
}
export const SAMPLES = { curl, Python: python, JavaScript: javascript };
