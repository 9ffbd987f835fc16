/** Copies text, over plain HTTP too, where browsers have no `navigator.clipboard`. */

import { make } from "./element.js";

/** @param {string} text @returns {Promise<boolean>} whether it is in the clipboard */
export async function copy(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // not allowed: the older way may be
    }
  }
  const focused = document.activeElement;
  const box = make("textarea", { class: "unseen", "aria-hidden": "true", tabindex: "-1" });
  box.value = text;
  // A dialog makes the rest of the page inert; a selection in it would be empty.
  (document.querySelector("dialog[open]") ?? document.body).append(box);
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return done;
}

/** A button that copies what `text` gives and says so. @param {() => string} text @param {string} kind */
export function copyButton(text, kind) {
  const button = make("button", { type: "button", class: kind }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text())) ? "Copied" : "The browser allows no copy";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  return button;
}
