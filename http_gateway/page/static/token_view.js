/** Shows an answer as its tokens, shaded by probability; each tells its rivals on hover or focus. */

import { make } from "./element.js";
import { percent } from "./quantity.js";

/** @import { Token } from "./answer.js" */

const LEVELS = [0.9, 0.7, 0.4, 0.15];

export class TokenView {
  #count = 0;

  constructor() {
    this.card = make("div", { class: "token-card", role: "tooltip", hidden: true });
    this.text = make("div", { class: "tokens", role: "group", "aria-label": "Answer, token by token" });
    this.node = make("div", { class: "token-view" }, this.text, this.card);
    this.text.addEventListener("keydown", (event) => this.#step(event));
  }

  /** @param {Token[]} tokens */
  show(tokens) {
    for (const token of tokens.slice(this.#count)) this.text.append(this.#span(token));
    this.#count = tokens.length;
  }

  /** @param {Token} token */
  #span(token) {
    const share = Math.exp(token.logprob);
    const level = LEVELS.filter((least) => share < least).length;
    const first = !this.text.childElementCount;
    const node = make(
      "span",
      { class: `token level-${level}`, tabindex: first ? "0" : "-1", "data-share": share.toFixed(4) },
      token.token,
    );
    node.setAttribute("aria-label", `${spoken(token.token)}, ${percent(share)}`);
    node.addEventListener("pointerenter", () => this.#tell(node, token));
    node.addEventListener("pointerleave", () => this.#hide());
    node.addEventListener("focus", () => this.#tell(node, token));
    node.addEventListener("blur", () => this.#hide());
    return node;
  }

  /** @param {HTMLElement} node @param {Token} token */
  #tell(node, token) {
    const rivals = token.top.length ? token.top : [token];
    const rows = rivals.map((rival) => {
      const share = Math.exp(rival.logprob);
      const meter = make("meter", { min: "0", max: "1", value: String(share), "aria-hidden": "true" });
      const chosen = rival.token === token.token ? "chosen" : "";
      return make("div", { class: `rival ${chosen}` }, make("code", {}, spoken(rival.token)), meter, percent(share));
    });
    if (!rivals.some((rival) => rival.token === token.token)) {
      rows.push(make("div", { class: "rival chosen" }, make("code", {}, spoken(token.token)), percent(Math.exp(token.logprob))));
    }
    this.card.replaceChildren(...rows);
    this.card.hidden = false;
    const here = this.node.getBoundingClientRect();
    const at = node.getClientRects()[0] ?? here;
    const most = Math.max(0, here.width - this.card.offsetWidth);
    this.card.style.left = `${Math.min(most, Math.max(0, at.left - here.left))}px`;
    this.card.style.top = `${at.bottom - here.top + 4}px`;
  }

  #hide() {
    this.card.hidden = true;
  }

  /** @param {KeyboardEvent} event */
  #step(event) {
    const ahead = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = document.activeElement;
    if (!ahead || !(at instanceof HTMLElement) || !this.text.contains(at)) return;
    const next = ahead > 0 ? at.nextElementSibling : at.previousElementSibling;
    event.preventDefault();
    if (!(next instanceof HTMLElement)) return;
    at.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}

/** A token with its spaces and line ends visible. @param {string} token */
function spoken(token) {
  return token.replaceAll("\n", "⏎").replaceAll(" ", "␣") || "(empty)";
}
