/** Rows of a table or a list: one is made anew only if it changed, so that focus and selection in it stay. */

import { make } from "./element.js";

/** @template T */
export class Rows {
  /** @type {Map<string, { text: string, node: HTMLElement }>} */
  #shown = new Map();

  /**
   * @param {HTMLElement} into
   * @param {{ key: (item: T) => string, row: (item: T) => HTMLElement, nothing: string, empty?: (text: string) => HTMLElement }} of
   *   `empty`: the only row while there is none; of a table by default
   */
  constructor(into, of) {
    this.into = into;
    this.of = of;
  }

  /** @param {T[]} items @param {string} [nothing] */
  show(items, nothing = this.of.nothing) {
    const before = this.#shown;
    this.#shown = new Map();
    for (const item of items) {
      const key = this.of.key(item);
      const text = JSON.stringify(item);
      const old = before.get(key);
      this.#shown.set(key, old?.text === text ? old : { text, node: this.of.row(item) });
    }
    const nodes = [...this.#shown.values()].map((each) => each.node);
    if (!nodes.length) {
      const empty = this.of.empty ?? ((text) => make("tr", {}, make("td", { colspan: "9", class: "dim" }, text)));
      this.into.replaceChildren(empty(nothing));
      return;
    }
    const same = nodes.length === this.into.childNodes.length && nodes.every((node, at) => node === this.into.childNodes[at]);
    if (!same) this.into.replaceChildren(...nodes);
  }
}
