/** The box in which a message is written, with its buttons. A draft outlives a reload of the tab. */

import { attachmentView } from "./attachment_view.js";
import { attached } from "./attachments.js";
import { found, tell } from "./element.js";
import { ofTab } from "./text_storage.js";

/** @import { Attachment } from "./attachments.js" */

const DRAFT = "sax-draft";

export class Composer {
  /** @type {Attachment[]} */
  #files = [];

  /**
   * @param {string} prefix of the ids of its elements
   * @param {{ send: () => void, stop: () => void }} on
   */
  constructor(prefix, on) {
    this.prefix = prefix;
    this.box = found(`${prefix}prompt`, HTMLTextAreaElement);
    this.send = found(`${prefix}send`, HTMLButtonElement);
    this.stop = found(`${prefix}stop`, HTMLButtonElement);
    found(`${prefix}composer`, HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      on.send();
    });
    this.box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      on.send();
    });
    this.stop.addEventListener("click", () => on.stop());
    this.box.addEventListener("input", () => ofTab.set(DRAFT + prefix, this.box.value));
    this.box.value = ofTab.get(DRAFT + prefix);
    this.list = found(`${prefix}attachments`, HTMLElement);
    this.trouble = found(`${prefix}attach-trouble`, HTMLElement);
    this.#takeFiles();
  }

  /** Files by button, paste and drop. */
  #takeFiles() {
    const input = found(`${this.prefix}attach-file`, HTMLInputElement);
    found(`${this.prefix}attach`, HTMLButtonElement).addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      void this.#attach(input.files);
      input.value = "";
    });
    this.box.addEventListener("paste", (event) => {
      const { files } = /** @type {DataTransfer} */ (event.clipboardData);
      if (!files.length) return;
      event.preventDefault();
      void this.#attach(files);
    });
    const chat = /** @type {HTMLElement} */ (this.box.closest("[role=tabpanel]"));
    chat.addEventListener("dragover", (event) => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
    });
    chat.addEventListener("drop", (event) => {
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      void this.#attach(event.dataTransfer.files);
    });
  }

  /** @param {FileList | null} files */
  async #attach(files) {
    const read = await Promise.allSettled([...(files ?? [])].map(attached));
    this.files = [...this.#files, ...read.flatMap((each) => (each.status === "fulfilled" ? [each.value] : []))];
    tell(this.trouble, read.flatMap((each) => (each.status === "rejected" ? [each.reason.message] : [])).join(" "));
    this.focus();
  }

  get files() {
    return this.#files;
  }

  set files(files) {
    this.#files = files;
    const without = (/** @type {Attachment} */ file) => () => (this.files = this.#files.filter((each) => each !== file));
    this.list.replaceChildren(...files.map((file) => attachmentView(file, without(file))));
    this.list.hidden = !files.length;
  }

  get text() {
    return this.box.value;
  }

  set text(text) {
    this.box.value = text;
    ofTab.set(DRAFT + this.prefix, text);
  }

  get isEmpty() {
    return !this.text.trim() && !this.#files.length;
  }

  /** Take what is in the box out of it. */
  take() {
    const { text, files } = this;
    this.fill({ text: "" });
    return { text, files };
  }

  /** Put a message back. @param {{ text: string, files?: Attachment[] }} message */
  fill({ text, files = [] }) {
    this.text = text;
    this.files = files;
    tell(this.trouble, "");
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
