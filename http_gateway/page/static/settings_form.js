/** The settings of a chat: system prompt, sampling, tools. The browser keeps them for each model. */

import { make, tell } from "./element.js";
import { mcpServers, offered } from "./mcp_tools.js";
import { ofBrowser } from "./text_storage.js";

/** @import { Settings } from "./conversation.js" */

const KEPT = "sax-settings";
const EXAMPLE = '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]';
const SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}';

/** Name, label, and what a number input takes. @type {[string, string, Record<string, string>][]} */
const NUMBERS = [
  ["temperature", "Temperature", { min: "0", max: "2", step: "any" }],
  ["top_p", "Top p", { min: "0", max: "1", step: "any" }],
  ["top_k", "Top k", { min: "-1", step: "1" }],
  ["min_p", "Min p", { min: "0", max: "1", step: "any" }],
  ["max_tokens", "Max tokens", { min: "1", step: "1" }],
  ["seed", "Seed", { step: "1" }],
  ["presence_penalty", "Presence penalty", { min: "-2", max: "2", step: "any" }],
  ["frequency_penalty", "Frequency penalty", { min: "-2", max: "2", step: "any" }],
  ["repetition_penalty", "Repetition penalty", { min: "0", step: "any" }],
];

const CHOICES = [["auto", "as the model likes"], ["required", "always"], ["none", "never"]];

export class SettingsForm {
  #model = "";
  /** Servers that were ticked when these settings were kept. @type {string[]} */
  #before = [];
  listed = false;

  /** The MCP servers that are ticked, by their URLs. @type {Map<string, HTMLInputElement>} */
  #servers = new Map();

  /** @param {HTMLElement} into @param {string} [side] of a comparison, which has settings of its own; "": of the chat */
  constructor(into, side = "") {
    this.side = side && `${side}:`;
    const id = (/** @type {string} */ name) => (side ? `${side}-${name}` : name);
    this.system = make("textarea", { id: id("system"), rows: "3", placeholder: "None" });
    this.numbers = new Map(NUMBERS.map(([name, , limits]) => [name, make("input", { id: id(name), type: "number", placeholder: "default", ...limits })]));
    this.stop = make("input", { id: id("stop-text"), placeholder: "none", spellcheck: "false" });
    this.tools = make("textarea", { id: id("tools"), class: "code", rows: "4", spellcheck: "false", placeholder: EXAMPLE });
    this.toolChoice = make("select", { id: id("tool-choice") }, ...CHOICES.map(([value, text]) => make("option", { value }, text)));
    this.schema = make("textarea", { id: id("schema"), class: "code", rows: "4", spellcheck: "false", placeholder: SCHEMA });
    this.schemaTrouble = make("p", { class: "trouble", role: "alert", hidden: true });
    this.toolsTrouble = make("p", { class: "trouble", role: "alert", hidden: true });
    this.probabilities = make("input", { id: id("probabilities"), type: "checkbox" });
    this.runs = make("input", { id: id("runs"), type: "checkbox" });
    this.servers = make("div", { class: "servers" }, make("p", { class: "dim" }, "Open to see which the gateway may call."));
    this.toolsPart = make("details", {}, make("summary", {}, "Tools"), this.#toolFields());
    this.toolsPart.addEventListener("toggle", () => this.toolsPart.open && void this.#listServers());
    into.append(...this.#parts());
    into.addEventListener("input", () => this.#changed());
  }

  /** Show the settings that this model had last. @param {string} model */
  use(model) {
    if (model === this.#model) return;
    this.#model = model;
    this.#restore(kept()[this.#key] ?? {});
  }

  /** @returns {Settings} @throws {Error} if the tools are no list in JSON, or the schema no object */
  get settings() {
    /** @type {Record<string, unknown>} */
    const sampling = {};
    for (const [name, input] of this.numbers) {
      if (input.value !== "") sampling[name] = Number(input.value);
    }
    if (this.stop.value) sampling.stop = this.stop.value.replaceAll("\\n", "\n");
    return {
      system: this.system.value,
      sampling,
      tools: toolsOf(this.tools.value),
      toolChoice: this.toolChoice.value,
      schema: schemaOf(this.schema.value),
      probabilities: this.probabilities.checked,
      servers: this.#ticked,
      runs: this.runs.checked,
    };
  }

  /** URLs; those that were ticked before the list of servers came count too. */
  get #ticked() {
    if (!this.listed) return this.#before;
    return [...this.#servers].flatMap(([url, box]) => (box.checked ? [url] : []));
  }

  #parts() {
    const fields = NUMBERS.map(([name, label]) => make("label", {}, label, this.numbers.get(name)));
    return [
      make("label", {}, "System prompt", this.system),
      make("label", { class: "check" }, this.probabilities, "Token probabilities"),
      make("details", { open: true }, make("summary", {}, "Sampling"), make("div", { class: "grid" }, ...fields, make("label", {}, "Stop at", this.stop))),
      this.toolsPart,
      make("details", {}, make("summary", {}, "Structured output"), make("label", {}, "Answer in JSON of this schema", this.schema), this.schemaTrouble),
    ];
  }

  #toolFields() {
    return [
      make("label", {}, "JSON of tools, as OpenAI's", this.tools),
      this.toolsTrouble,
      make("label", {}, "Call one", this.toolChoice),
      make("fieldset", {}, make("legend", {}, "Of MCP servers"), this.servers, make("label", { class: "check" }, this.runs, "Run calls without asking")),
    ];
  }

  /** Show the servers that the gateway may call, once. */
  async #listServers() {
    if (this.listed) return;
    this.listed = true;
    try {
      const urls = await mcpServers();
      const nothing = make("p", { class: "dim" }, "The gateway may call none: its operator lists them in --mcp_servers.");
      this.servers.replaceChildren(...(urls.length ? urls.map((url) => this.#server(url)) : [nothing]));
      this.#restore(kept()[this.#key] ?? {});
    } catch (error) {
      this.listed = false;
      this.servers.replaceChildren(make("p", { class: "trouble" }, error instanceof Error ? error.message : String(error)));
    }
  }

  /** @param {string} url */
  #server(url) {
    const box = make("input", { type: "checkbox" });
    const about = make("p", { class: "dim", hidden: true });
    this.#servers.set(url, box);
    box.addEventListener("change", async () => {
      if (!box.checked) return tell(about, "");
      try {
        tell(about, (await offered(url)).map(({ name }) => name).join(", ") || "It offers no tool.");
      } catch (error) {
        tell(about, error instanceof Error ? error.message : String(error));
      }
    });
    return make("div", {}, make("label", { class: "check" }, box, url), about);
  }

  /** Where the settings of this model are kept. */
  get #key() {
    return this.side + this.#model;
  }

  #changed() {
    tell(this.toolsTrouble, troubleOf(() => toolsOf(this.tools.value)));
    tell(this.schemaTrouble, troubleOf(() => schemaOf(this.schema.value)));
    /** @type {Record<string, string | boolean | string[]>} */
    const values = { servers: this.#ticked, runs: this.runs.checked, system: this.system.value, stop: this.stop.value, tools: this.tools.value, choice: this.toolChoice.value, schema: this.schema.value, probabilities: this.probabilities.checked };
    for (const [name, input] of this.numbers) values[name] = input.value;
    if (this.#model) ofBrowser.set(KEPT, JSON.stringify({ ...kept(), [this.#key]: values }));
  }

  /** @param {Record<string, any>} values */
  #restore(values) {
    this.system.value = values.system ?? "";
    this.stop.value = values.stop ?? "";
    this.tools.value = values.tools ?? "";
    this.schema.value = values.schema ?? "";
    this.toolChoice.value = values.choice ?? "auto";
    this.probabilities.checked = values.probabilities === true;
    this.runs.checked = values.runs === true;
    this.#before = values.servers ?? [];
    for (const [url, box] of this.#servers) {
      box.checked = this.#before.includes(url);
      box.dispatchEvent(new Event("change"));
    }
    for (const [name, input] of this.numbers) input.value = values[name] ?? "";
  }
}

/** Settings by model. @returns {Record<string, Record<string, any>>} */
function kept() {
  return JSON.parse(ofBrowser.get(KEPT) || "{}");
}

/** @param {() => unknown} read @returns {string} what it throws, in words; "" if nothing */
function troubleOf(read) {
  try {
    read();
    return "";
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

/**
 * @param {string} text
 * @returns {unknown[]}
 * @throws {Error} in words for the user
 */
export function toolsOf(text) {
  const tools = jsonOf(text, "tools are") ?? [];
  if (!Array.isArray(tools)) throw new Error("The tools are not a list: begin with [");
  return tools;
}

/**
 * @param {string} text
 * @returns {object | null} null: none is wanted
 * @throws {Error} in words for the user
 */
export function schemaOf(text) {
  const schema = jsonOf(text, "schema is");
  if (schema !== null && (typeof schema !== "object" || Array.isArray(schema))) throw new Error("The schema is not an object: begin with {");
  return schema;
}

/** @param {string} text @param {string} what @returns {any} null: empty */
function jsonOf(text, what) {
  if (!text.trim()) return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The ${what} not JSON: ${error instanceof Error ? error.message : error}`);
  }
}
