/** The box in which a message is written, with its buttons. A draft outlives a reload of the tab. */

import { found } from "./element.js";

const DRAFT = "sax-draft";

export class Composer {
  /** @param {{ send: () => void, stop: () => void }} on */
  constructor(on) {
    this.box = found("prompt", HTMLTextAreaElement);
    this.send = found("send", HTMLButtonElement);
    this.stop = found("stop", HTMLButtonElement);
    found("composer", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      on.send();
    });
    this.box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      on.send();
    });
    this.stop.addEventListener("click", () => on.stop());
    this.box.addEventListener("input", () => sessionStorage.setItem(DRAFT, this.box.value));
    this.box.value = sessionStorage.getItem(DRAFT) ?? "";
  }

  get text() {
    return this.box.value;
  }

  set text(text) {
    this.box.value = text;
    sessionStorage.setItem(DRAFT, text);
  }

  focus() {
    this.box.focus();
  }

  /** @param {{ busy: boolean, able: boolean }} state */
  show({ busy, able }) {
    this.send.hidden = busy;
    this.stop.hidden = !busy;
    this.send.disabled = !able;
  }
}
