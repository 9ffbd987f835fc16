/** The dialog that asks for the API key. */

import { key, setKey } from "./api.js";
import { found, tell } from "./element.js";

export class KeyDialog {
  /** @param {{ changed: () => void }} on */
  constructor(on) {
    this.dialog = found("key-dialog", HTMLDialogElement);
    this.input = found("key", HTMLInputElement);
    this.opening = found("key-open", HTMLButtonElement);
    this.opening.addEventListener("click", () => this.open());
    this.dialog.querySelector("form")?.addEventListener("submit", (event) => {
      const button = /** @type {SubmitEvent} */ (event).submitter;
      const forgets = button instanceof HTMLButtonElement && button.value === "forget";
      setKey(forgets ? "" : this.input.value.trim());
      this.input.value = "";
      this.#name();
      on.changed();
    });
    // Enter sends a form with its first button, which here would forget the key.
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      /** @type {HTMLButtonElement | null} */ (this.dialog.querySelector("button.primary"))?.click();
    });
    this.#name();
  }

  /** @param {string} [why] */
  open(why = "") {
    tell(found("key-trouble", HTMLElement), why);
    if (!this.dialog.open) this.dialog.showModal();
    this.input.focus();
  }

  #name() {
    this.opening.textContent = key() ? "API key ✓" : "API key";
    // A browser sends no key when it follows a link.
    found("docs-link", HTMLElement).hidden = Boolean(key());
  }
}
