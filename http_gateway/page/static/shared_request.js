/** A request of the chat as a program would make it: curl, and Python with OpenAI's client. Pure. */

// What OpenAI's client takes by name; it passes anything else in `extra_body`.
const NAMED = new Set(
  ("model messages stream stream_options temperature top_p max_tokens seed presence_penalty frequency_penalty stop " +
    "tools tool_choice logprobs top_logprobs").split(" "),
);

/** @param {string} origin @param {object} body @param {boolean} withKey */
export function asCurl(origin, body, withKey) {
  const key = withKey ? `  -H "authorization: Bearer $SAX_API_KEY" \\\n` : "";
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl -N ${origin}/v1/chat/completions \\\n${key}  -H 'content-type: application/json' \\\n  -d '${json}'\n`;
}

/** @param {string} origin @param {object} body @param {boolean} withKey */
export function asPython(origin, body, withKey) {
  const key = withKey ? 'os.environ["SAX_API_KEY"]' : '"none"';
  const named = Object.entries(body).filter(([name]) => NAMED.has(name));
  const more = Object.entries(body).filter(([name]) => !NAMED.has(name));
  const fields = named.map(([name, value]) => `    ${name}=${literal(value, "    ")},\n`);
  if (more.length) fields.push(`    extra_body=${literal(Object.fromEntries(more), "    ")},\n`);
  return (
    `${withKey ? "import os\n\n" : ""}from openai import OpenAI\n\n` +
    `client = OpenAI(base_url="${origin}/v1", api_key=${key})\n` +
    `stream = client.chat.completions.create(\n${fields.join("")})\n` +
    `for chunk in stream:\n    for choice in chunk.choices:\n        print(choice.delta.content or "", end="", flush=True)\n`
  );
}

/** A value of JSON as Python writes it. @param {unknown} value @param {string} indent @returns {string} */
function literal(value, indent) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const items = Array.isArray(value)
    ? value.map((each) => `${inner}${literal(each, inner)},\n`)
    : Object.entries(value).map(([name, each]) => `${inner}${JSON.stringify(name)}: ${literal(each, inner)},\n`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return items.length ? `${open}\n${items.join("")}${indent}${close}` : open + close;
}
