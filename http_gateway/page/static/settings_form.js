/** The settings of a chat: system prompt, sampling, tools. The browser keeps them for each model. */

import { make, tell } from "./element.js";

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

  /** @param {HTMLElement} into */
  constructor(into) {
    this.system = make("textarea", { id: "system", rows: "3", placeholder: "None" });
    this.numbers = new Map(NUMBERS.map(([name, , limits]) => [name, make("input", { id: name, type: "number", placeholder: "default", ...limits })]));
    this.stop = make("input", { id: "stop-text", placeholder: "none", spellcheck: "false" });
    this.tools = make("textarea", { id: "tools", class: "code", rows: "4", spellcheck: "false", placeholder: EXAMPLE });
    this.toolChoice = make("select", { id: "tool-choice" }, ...CHOICES.map(([value, text]) => make("option", { value }, text)));
    this.schema = make("textarea", { id: "schema", class: "code", rows: "4", spellcheck: "false", placeholder: SCHEMA });
    this.schemaTrouble = make("p", { class: "trouble", role: "alert", hidden: true });
    this.toolsTrouble = make("p", { class: "trouble", role: "alert", hidden: true });
    this.probabilities = make("input", { id: "probabilities", type: "checkbox" });
    into.append(...this.#parts());
    into.addEventListener("input", () => this.#changed());
  }

  /** Show the settings that this model had last. @param {string} model */
  use(model) {
    if (model === this.#model) return;
    this.#model = model;
    this.#restore(kept()[model] ?? {});
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
    };
  }

  #parts() {
    const fields = NUMBERS.map(([name, label]) => make("label", {}, label, this.numbers.get(name)));
    return [
      make("label", {}, "System prompt", this.system),
      make("label", { class: "check" }, this.probabilities, "Token probabilities"),
      make("details", { open: true }, make("summary", {}, "Sampling"), make("div", { class: "grid" }, ...fields, make("label", {}, "Stop at", this.stop))),
      make("details", {}, make("summary", {}, "Tools"), make("label", {}, "JSON of tools, as OpenAI's", this.tools), this.toolsTrouble, make("label", {}, "Call one", this.toolChoice)),
      make("details", {}, make("summary", {}, "Structured output"), make("label", {}, "Answer in JSON of this schema", this.schema), this.schemaTrouble),
    ];
  }

  #changed() {
    tell(this.toolsTrouble, troubleOf(() => toolsOf(this.tools.value)));
    tell(this.schemaTrouble, troubleOf(() => schemaOf(this.schema.value)));
    /** @type {Record<string, string | boolean>} */
    const values = { system: this.system.value, stop: this.stop.value, tools: this.tools.value, choice: this.toolChoice.value, schema: this.schema.value, probabilities: this.probabilities.checked };
    for (const [name, input] of this.numbers) values[name] = input.value;
    if (this.#model) localStorage.setItem(KEPT, JSON.stringify({ ...kept(), [this.#model]: values }));
  }

  /** @param {Record<string, any>} values */
  #restore(values) {
    this.system.value = values.system ?? "";
    this.stop.value = values.stop ?? "";
    this.tools.value = values.tools ?? "";
    this.schema.value = values.schema ?? "";
    this.toolChoice.value = values.choice ?? "auto";
    this.probabilities.checked = values.probabilities === true;
    for (const [name, input] of this.numbers) input.value = values[name] ?? "";
  }
}

/** Settings by model. @returns {Record<string, Record<string, any>>} */
function kept() {
  return JSON.parse(localStorage.getItem(KEPT) ?? "{}");
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
