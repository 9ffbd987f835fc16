/** Shows one turn of a conversation. */

import { make, tell } from "./element.js";
import { duration, figure } from "./quantity.js";
import { Rendered } from "./rendered.js";
import { TokenView } from "./token_view.js";
import { ToolCard } from "./tool_card.js";

/** @import { Answer } from "./answer.js" */

/** @param {string} text */
export function userMessage(text) {
  return make("article", { class: "message user", "aria-label": "You" }, make("div", { class: "text plain" }, text));
}

/** @param {string} name @param {string} text */
export function resultMessage(name, text) {
  return make(
    "article",
    { class: "message result", "aria-label": `Result of ${name}` },
    make("span", { class: "dim" }, `${name} returned`),
    make("pre", {}, text),
  );
}

export class AnswerView {
  /** @type {TokenView | null} */
  #tokens = null;
  /** @type {ToolCard[]} */
  #cards = [];

  /** @param {{ give: (results: string[]) => void, again: () => void }} on */
  constructor(on) {
    this.thought = make("div", { class: "text plain" });
    this.thoughts = make("details", { class: "thoughts", hidden: true }, make("summary", {}, "Reasoning"), this.thought);
    this.text = make("div", { class: "text" });
    this.calls = make("div", { class: "calls" });
    this.giving = make("button", { type: "button", class: "primary", hidden: true }, "Send results");
    this.giving.addEventListener("click", () => on.give(this.#cards.map((card) => card.result.value)));
    this.trouble = make("p", { class: "trouble", role: "alert", hidden: true });
    this.figures = make("span", { class: "figures dim" });
    this.again = make("button", { type: "button", class: "quiet", hidden: true }, "Again");
    this.again.addEventListener("click", () => on.again());
    this.node = make(
      "article",
      { class: "message answer", "aria-label": "Answer", "aria-busy": "true" },
      this.thoughts,
      this.text,
      this.calls,
      this.giving,
      this.trouble,
      make("footer", {}, this.figures, this.again),
    );
    this.rendered = new Rendered(this.text);
  }

  /**
   * @param {Answer} answer
   * @param {{ over: boolean, last: boolean, probabilities: boolean }} state
   */
  show(answer, { over, last, probabilities }) {
    this.thoughts.hidden = !answer.reasoning;
    this.thought.textContent = answer.reasoning;
    if (probabilities && answer.tokens.length) this.#showTokens(answer);
    else this.rendered.show(answer.content);
    this.#showCalls(answer, over && last);
    tell(this.trouble, answer.error);
    this.figures.textContent = told(answer, over);
    this.again.hidden = !(over && last);
    this.node.setAttribute("aria-busy", String(!over));
    this.node.classList.toggle("waiting", !over && answer.firstMs === null);
  }

  /** @param {Answer} answer */
  #showTokens(answer) {
    if (!this.#tokens) {
      this.#tokens = new TokenView();
      this.text.replaceChildren(this.#tokens.node);
    }
    this.#tokens.show(answer.tokens);
  }

  /** @param {Answer} answer @param {boolean} waiting */
  #showCalls(answer, waiting) {
    answer.calls.forEach((call, index) => {
      if (!this.#cards[index]) {
        this.#cards[index] = new ToolCard();
        this.calls.append(this.#cards[index].node);
      }
      this.#cards[index].show(call, waiting);
    });
    this.giving.hidden = !(waiting && answer.calls.length);
  }
}

/** @type {Record<string, string>} */
const ENDS = { length: "cut at the limit of tokens", stopped: "stopped" };

/** @param {Answer} answer @param {boolean} over */
function told(answer, over) {
  const { firstTokenS, tokensPerS, usage } = answer;
  return [
    usage && `${usage.completion} tokens`,
    tokensPerS !== null && `${figure(tokensPerS)} tokens/s`,
    firstTokenS !== null && `first after ${duration(firstTokenS)}`,
    usage && over && `prompt ${usage.prompt} tokens${usage.cached ? `, ${usage.cached} cached` : ""}`,
    over && ENDS[answer.finish],
  ].filter(Boolean).join(" · ");
}
