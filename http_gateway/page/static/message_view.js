/** Shows one turn of a conversation, with what can be done to it. */

import { attachmentView } from "./attachment_view.js";
import { copyButton } from "./clipboard.js";
import { make, tell } from "./element.js";
import { duration, figure } from "./quantity.js";
import { Rendered } from "./rendered.js";
import { TokenView } from "./token_view.js";
import { ToolCard } from "./tool_card.js";

/** @import { Answer, ToolCall } from "./answer.js" */
/** @import { UserTurn } from "./conversation.js" */

/**
 * What a turn's buttons do.
 * @typedef {object} TurnActions
 * @property {(text: string) => void} edit
 * @property {() => void} again
 * @property {() => void} goOn
 * @property {() => void} branch
 * @property {() => void} remove
 * @property {(step: number) => void} choose
 * @property {(results: string[]) => void} give
 * @property {(call: ToolCall) => string} runner the MCP server that can run a call; "": none
 * @property {(call: ToolCall) => Promise<string>} run
 *
 * @typedef {object} TurnState
 * @property {boolean} over false while it streams
 * @property {boolean} last whether it is the last turn, and nothing streams but it
 * @property {{ at: number, of: number }} version
 * @property {boolean} unsent left out of requests, so that the rest fits
 */

export class UserView {
  /** @param {UserTurn} turn @param {TurnActions} on */
  constructor({ text, files = [] }, on) {
    this.said = make("div", { class: "text plain" }, text);
    const list = make("ul", { class: "attachments", hidden: !files.length }, files.map((file) => attachmentView(file)));
    this.box = make("textarea", { rows: "2", "aria-label": "The message, edited" });
    const cancel = button("Cancel", () => this.#edit(false));
    const send = make("button", { type: "submit", class: "primary" }, "Send");
    this.form = make("form", { class: "edit", hidden: true }, this.box, make("div", { class: "actions" }, cancel, send));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      const { value } = this.box;
      if (!value.trim()) return;
      this.#edit(false);
      on.edit(value);
    });
    this.form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        this.#edit(false);
        event.stopPropagation();
      }
    });
    this.versions = new VersionSwitch(on.choose);
    this.again = button("Again", on.again);
    this.foot = make(
      "footer",
      {},
      this.versions.node,
      this.again,
      button("Edit", () => this.#edit(true)),
      copyButton(() => text, "quiet"),
      button("Branch", on.branch),
      button("Delete", on.remove),
    );
    this.node = make("article", { class: "message user", "aria-label": "You" }, list, this.said, this.form, this.foot);
    this.text = text;
  }

  /** @param {TurnState} state */
  show({ last, version, unsent }) {
    this.versions.show(version);
    this.again.hidden = !last;
    this.node.classList.toggle("unsent", unsent);
  }

  /** @param {boolean} begins */
  #edit(begins) {
    this.box.value = this.text;
    this.form.hidden = !begins;
    this.said.hidden = this.foot.hidden = begins;
    this.node.classList.toggle("editing", begins);
    if (begins) this.box.focus();
  }
}

export class ResultView {
  /** @param {string} name @param {string} text @param {TurnActions} on */
  constructor(name, text, on) {
    this.foot = make("footer", { hidden: true }, button("Again", on.again));
    this.node = make(
      "article",
      { class: "message result", "aria-label": `Result of ${name}` },
      make("span", { class: "dim" }, `${name} returned`),
      make("pre", {}, text),
      this.foot,
    );
  }

  /** @param {TurnState} state */
  show({ last, unsent }) {
    this.foot.hidden = !last;
    this.node.classList.toggle("unsent", unsent);
  }
}

export class AnswerView {
  /** @type {TokenView | null} */
  #tokens = null;
  /** @type {ToolCard[]} */
  #cards = [];
  /** Whether it was drawn after its end. */
  #whole = false;

  /** @param {Answer} answer @param {boolean} probabilities @param {TurnActions} on */
  constructor(answer, probabilities, on) {
    this.on = on;
    this.answer = answer;
    this.probabilities = probabilities;
    this.thought = make("div", { class: "text plain" });
    this.thoughts = make("details", { class: "thoughts", hidden: true }, make("summary", {}, "Reasoning"), this.thought);
    this.text = make("div", { class: "text" });
    this.calls = make("div", { class: "calls" });
    this.giving = make("button", { type: "button", class: "primary", hidden: true }, "Send results");
    this.giving.addEventListener("click", () => on.give(this.#cards.map((card) => card.result.value)));
    this.trouble = make("p", { class: "trouble", role: "alert", hidden: true });
    this.figures = make("span", { class: "figures dim" });
    this.versions = new VersionSwitch(on.choose);
    this.again = button("Again", on.again);
    this.goOn = button("Continue", on.goOn);
    this.whenOver = make(
      "span",
      { class: "turn-actions", hidden: true },
      this.versions.node,
      this.again,
      this.goOn,
      copyButton(() => answer.parts.text, "quiet"),
      button("Branch", on.branch),
      button("Delete", on.remove),
    );
    this.node = make(
      "article",
      { class: "message answer", "aria-label": "Answer", "aria-busy": "true" },
      this.thoughts,
      this.text,
      this.calls,
      this.giving,
      this.trouble,
      make("footer", {}, this.figures, this.whenOver),
    );
    this.rendered = new Rendered(this.text);
  }

  /** @param {TurnState} state */
  show({ over, last, version, unsent }) {
    const { answer } = this;
    // What is over does not change, and a chat may have hundreds of answers.
    if (!over || !this.#whole) this.#draw(answer, over);
    this.#whole = over;
    if (answer.calls.length) this.#showCalls(answer, over && last);
    tell(this.trouble, answer.error);
    this.figures.textContent = told(answer, over);
    this.whenOver.hidden = !over;
    this.versions.show(version);
    this.again.hidden = !last;
    // A call is not text that could go on.
    this.goOn.hidden = !(last && answer.content && !answer.calls.length);
    this.node.setAttribute("aria-busy", String(!over));
    this.node.classList.toggle("waiting", !over && answer.firstMs === null);
    this.node.classList.toggle("unsent", unsent);
  }

  /** @param {Answer} answer @param {boolean} over */
  #draw(answer, over) {
    const { reasoning, text } = answer.parts;
    this.thoughts.hidden = !reasoning;
    if (this.thought.textContent?.length !== reasoning.length) this.thought.textContent = reasoning;
    if (this.probabilities && answer.tokens.length) this.#showTokens(answer);
    else this.rendered.show(text, over);
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
        this.#cards[index] = new ToolCard(this.on);
        this.calls.append(this.#cards[index].node);
      }
      this.#cards[index].show(call, waiting);
    });
    this.giving.hidden = !(waiting && answer.calls.length);
  }
}

/** Steps between the versions of a turn; hidden while there is one only. */
class VersionSwitch {
  /** @param {(step: number) => void} choose */
  constructor(choose) {
    this.place = make("span");
    this.before = button("‹", () => choose(-1), "The version before");
    this.after = button("›", () => choose(1), "The next version");
    this.node = make("span", { class: "versions", hidden: true }, this.before, this.place, this.after);
  }

  /** @param {{ at: number, of: number }} version */
  show({ at, of }) {
    this.node.hidden = of < 2;
    this.place.textContent = `${at} of ${of}`;
    this.before.disabled = at === 1;
    this.after.disabled = at === of;
  }
}

/** @param {string} text @param {() => void} does @param {string} [label] */
function button(text, does, label = "") {
  const node = make("button", { type: "button", class: "quiet", "aria-label": label || false }, text);
  node.addEventListener("click", does);
  return node;
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
