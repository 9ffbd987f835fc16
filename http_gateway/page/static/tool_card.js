/** Shows one call of a tool, with a place for its result. */

import { make } from "./element.js";

/** @import { ToolCall } from "./answer.js" */

export class ToolCard {
  constructor() {
    this.name = make("b");
    this.arguments = make("pre", { tabindex: "0", "aria-label": "Arguments" });
    this.result = make("textarea", { class: "code", rows: "2", placeholder: "Type what the tool returns", "aria-label": "Result of the call" });
    this.node = make(
      "div",
      { class: "call" },
      make("div", {}, make("span", { class: "dim" }, "calls "), this.name),
      this.arguments,
      this.result,
    );
    this.result.hidden = true;
  }

  /**
   * @param {ToolCall} call
   * @param {boolean} waiting for its result
   */
  show(call, waiting) {
    this.name.textContent = call.name;
    this.result.setAttribute("aria-label", `Result of ${call.name}`);
    this.arguments.textContent = pretty(call.arguments);
    this.result.hidden = !waiting;
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
