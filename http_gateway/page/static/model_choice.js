/** The model that is asked, of those that are ready. */

import { found, make } from "./element.js";

export class ModelChoice {
  /** Of an opened chat, until the cell offers it. */
  #wanted = "";

  /** @param {{ chosen: (name: string) => void }} on */
  constructor(on) {
    this.on = on;
    this.select = found("model", HTMLSelectElement);
    this.select.addEventListener("change", () => on.chosen(this.value));
  }

  /** Its name; "" while none is ready. */
  get value() {
    return this.select.value;
  }

  /**
   * Offer these models, and keep the one that is chosen.
   * @param {string[]} names
   */
  offer(names) {
    const options = [...this.select.options].map((option) => option.value);
    if (options.join(" ") === names.join(" ") && options.length) return;
    const chosen = names.includes(this.#wanted) ? this.#wanted : this.value;
    const shown = names.map((name) => make("option", { value: name }, name.split("/").at(-1) ?? name));
    this.select.replaceChildren(...(shown.length ? shown : [make("option", { value: "" }, "no model is ready")]));
    if (names.includes(chosen)) this.select.value = chosen;
    this.on.chosen(this.value);
  }

  /** Choose a model, now or as soon as it is ready. @param {string} name */
  want(name) {
    this.#wanted = name;
    if (![...this.select.options].some((option) => option.value === name)) return;
    this.select.value = name;
    this.on.chosen(name);
  }
}
