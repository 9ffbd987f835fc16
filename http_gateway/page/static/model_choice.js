/** The choice of a model of those that are ready: a box that finds it by words of its name. */

import { make } from "./element.js";

const MOST_SHOWN = 100; // more are found by typing

export class ModelChoice {
  /** @type {string[]} */
  #names = [];
  #value = "";
  /** What the user or an opened chat chose, which is taken whenever the cell offers it. */
  #wanted = "";
  /** What the list shows, and which of it Enter takes. @type {HTMLElement[]} */
  #shown = [];
  #at = -1;

  /**
   * @param {HTMLElement} into
   * @param {{ id: string, label: string, chosen: (name: string) => void }} of `id`: of the box; `label`: for who cannot see it
   */
  constructor(into, { id, label, chosen }) {
    this.chosen = chosen;
    this.id = id;
    const list = `${id}-list`;
    this.list = make("ul", { id: list, role: "listbox", "aria-label": `${label}s`, hidden: true });
    this.box = make("input", {
      id, role: "combobox", "aria-label": label, "aria-expanded": "false", "aria-controls": list, "aria-autocomplete": "list",
      autocomplete: "off", spellcheck: "false", placeholder: "no model is ready",
    });
    this.box.addEventListener("focus", () => this.box.select());
    this.box.addEventListener("click", () => this.#open());
    this.box.addEventListener("input", () => this.#open(this.box.value));
    this.box.addEventListener("keydown", (event) => this.#pressed(event));
    this.box.addEventListener("blur", () => this.#close());
    into.classList.add("choice");
    into.append(this.box, this.list);
  }

  /** Its full name; "" while none is ready. */
  get value() {
    return this.#value;
  }

  /** Offer these models, and keep the one that is chosen. @param {string[]} names */
  offer(names) {
    if (names.join(" ") === this.#names.join(" ")) return;
    this.#names = names;
    const keeps = [this.#wanted, this.#value].find((name) => names.includes(name));
    if (this.#value !== (keeps ?? names[0] ?? "")) this.#take(keeps ?? names[0] ?? "");
    if (this.#isOpen) this.#open(this.box.value);
    else this.#show("");
  }

  /** Choose a model, now or as soon as it is ready. @param {string} name */
  want(name) {
    this.#wanted = name;
    if (this.#names.includes(name)) this.#take(name);
  }

  focus() {
    this.box.focus();
    this.#open();
  }

  get #isOpen() {
    return !this.list.hidden;
  }

  /** @param {string} name */
  #take(name) {
    this.#value = name;
    this.box.value = last(name);
    this.box.title = name;
    this.chosen(name);
  }

  /** @param {string} [words] that the names shall have */
  #open(words = "") {
    this.list.hidden = false;
    this.box.setAttribute("aria-expanded", "true");
    this.#show(words);
  }

  #close() {
    this.list.hidden = true;
    this.box.setAttribute("aria-expanded", "false");
    this.box.removeAttribute("aria-activedescendant");
    this.box.value = last(this.#value);
    this.#show("");
  }

  /** @param {string} words */
  #show(words) {
    const found = matching(this.#names, words);
    this.#shown = found.slice(0, MOST_SHOWN).map((name, at) => this.#option(name, at));
    const more = found.length - this.#shown.length;
    const note = !found.length ? "no model has these words" : more > 0 && `${more} more: type to find them`;
    this.list.replaceChildren(...this.#shown, ...(note ? [make("li", { class: "dim", role: "presentation" }, note)] : []));
    this.#mark(words ? 0 : Math.max(0, found.indexOf(this.#value)));
  }

  /** @param {string} name @param {number} at */
  #option(name, at) {
    const chosen = String(name === this.#value);
    const node = make("li", { role: "option", id: `${this.id}-${at}`, "data-value": name, "aria-selected": chosen }, make("b", {}, last(name)), make("span", { class: "dim" }, ` ${name}`));
    node.addEventListener("pointerdown", (event) => {
      event.preventDefault(); // the box keeps the focus
      this.want(name);
      this.#close();
    });
    return node;
  }

  /** @param {number} at */
  #mark(at) {
    this.#shown[this.#at]?.classList.remove("marked");
    this.#at = Math.min(this.#shown.length - 1, Math.max(0, at));
    const node = this.#shown[this.#at];
    if (!node || !this.#isOpen) return;
    node.classList.add("marked");
    this.box.setAttribute("aria-activedescendant", node.id);
    node.scrollIntoView({ block: "nearest" });
  }

  /** @param {KeyboardEvent} event */
  #pressed(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (step) {
      if (this.#isOpen) this.#mark(this.#at + step);
      else this.#open();
    } else if (event.key === "Enter" && this.#isOpen) {
      const name = this.#shown[this.#at]?.dataset.value;
      if (name) this.want(name);
      this.#close();
    } else if (event.key === "Escape" && this.#isOpen) {
      this.#close();
      event.stopPropagation();
    } else return;
    event.preventDefault();
  }
}

/** The last part of a name. @param {string} name */
function last(name) {
  return name.split("/").at(-1) ?? name;
}

/** The names that have each of these words; one that is just these words comes first. @param {string[]} names @param {string} text */
function matching(names, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = names.filter((name) => words.every((word) => name.toLowerCase().includes(word)));
  const whole = found.filter((name) => name === text || last(name) === text);
  return [...whole, ...found.filter((name) => !whole.includes(name))];
}
