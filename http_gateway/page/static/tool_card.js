/** Shows one call of a tool, with a place for its result, and runs it where a server can. */

import { make } from "./element.js";

/** @import { ToolCall } from "./answer.js" */

export class ToolCard {
  /** @type {ToolCall | null} */
  #call = null;

  /** @param {{ runner: (call: ToolCall) => string, run: (call: ToolCall) => Promise<string> }} on */
  constructor(on) {
    this.on = on;
    this.name = make("b");
    this.arguments = make("pre", { tabindex: "0", "aria-label": "Arguments" });
    this.result = make("textarea", { class: "code", rows: "2", placeholder: "Type what the tool returns", "aria-label": "Result of the call" });
    this.run = make("button", { type: "button", hidden: true });
    this.run.addEventListener("click", () => void this.#run());
    this.node = make(
      "div",
      { class: "call" },
      make("div", {}, make("span", { class: "dim" }, "calls "), this.name),
      this.arguments,
      this.result,
      this.run,
    );
    this.result.hidden = true;
  }

  /**
   * @param {ToolCall} call
   * @param {boolean} waiting for its result
   */
  show(call, waiting) {
    this.#call = call;
    this.name.textContent = call.name;
    this.result.setAttribute("aria-label", `Result of ${call.name}`);
    this.arguments.textContent = pretty(call.arguments);
    this.result.hidden = !waiting;
    const server = waiting && this.on.runner(call);
    this.run.hidden = !server;
    if (server) this.run.textContent = `Run ${call.name} at ${new URL(server).host}`;
  }

  /** Put what the server returns where a person may still change it. */
  async #run() {
    if (!this.#call) return;
    this.run.disabled = true;
    this.result.value = await this.on.run(this.#call);
    this.run.disabled = false;
    this.result.focus();
  }
}

/** @param {string} text */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not whole yet, or never was JSON
  }
}
