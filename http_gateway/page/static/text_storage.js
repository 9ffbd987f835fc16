/** Short texts that the browser keeps; where it keeps none, they last as long as the page. */

export class TextStorage {
  /** What the browser did not take: it forbids storage, or is full. @type {Map<string, string>} */
  #memory = new Map();

  /** @param {() => Storage} of */
  constructor(of) {
    this.of = of;
  }

  /** @param {string} name @returns {string} "" if there is none */
  get(name) {
    try {
      return this.#memory.get(name) ?? this.of().getItem(name) ?? "";
    } catch {
      return "";
    }
  }

  /** @param {string} name @param {string} text "": forget it */
  set(name, text) {
    this.#memory.delete(name);
    try {
      if (text) this.of().setItem(name, text);
      else this.of().removeItem(name);
    } catch {
      this.#memory.set(name, text);
    }
  }
}

/** Of this tab, until it is closed. */
export const ofTab = new TextStorage(() => sessionStorage);
/** Of this browser. */
export const ofBrowser = new TextStorage(() => localStorage);
