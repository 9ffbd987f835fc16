/** The list of chats that this browser keeps: searched, opened, renamed, deleted, exported, imported. */

import { ChatStore } from "./chat_store.js";
import { found, make, tell } from "./element.js";
import { Rows } from "./rows.js";
import { exported, imported, matching } from "./saved_chats.js";

/** @import { Chat } from "./saved_chats.js" */

const MOST_SHOWN = 200; // more are found by searching

export class ChatsView {
  #store = new ChatStore();
  /** @type {Map<string, Chat>} */
  #chats = new Map();
  #open = "";
  /** The chat that a dialog is about. @type {Chat | null} */
  #asked = null;

  /** @param {{ open: (chat: Chat) => void, renamed: (chat: Chat) => void, removed: (chat: Chat) => void }} on */
  constructor(on) {
    this.on = on;
    this.list = found("chats-list", HTMLElement);
    this.search = found("chats-search", HTMLInputElement);
    this.trouble = found("chats-trouble", HTMLElement);
    this.rows = new Rows(this.list, {
      key: ({ id }) => id,
      row: (row) => this.#row(row),
      nothing: "No chats yet.",
      empty: (text) => make("li", { class: "dim" }, text),
    });
    this.search.addEventListener("input", () => this.#draw());
    found("chats-export", HTMLButtonElement).addEventListener("click", () => this.#export([...this.#chats.values()], "chats"));
    const file = found("chats-file", HTMLInputElement);
    found("chats-import", HTMLButtonElement).addEventListener("click", () => file.click());
    file.addEventListener("change", () => void this.#import(file));
    this.#dialogs();
    void this.#read();
  }

  /** Mark this chat as the one that is shown. @param {string} id */
  mark(id) {
    if (this.#open === id) return;
    this.#open = id;
    this.#draw();
  }

  /** Keep a chat as it is now. @param {Chat} chat */
  async keep(chat) {
    this.#chats.set(chat.id, chat);
    this.#draw();
    await this.#write(() => this.#store.put(chat));
  }

  async #read() {
    for (const chat of await this.#store.all()) if (!this.#chats.has(chat.id)) this.#chats.set(chat.id, chat);
    if (!(await this.#store.lasts())) tell(this.trouble, "This browser keeps nothing here: chats end with the tab.");
    this.#draw();
  }

  /** @param {() => Promise<void>} does */
  async #write(does) {
    try {
      await does();
    } catch (error) {
      tell(this.trouble, `The browser could not keep the chat (${error instanceof Error ? error.message : error}): export it.`);
    }
  }

  #draw() {
    const chats = matching([...this.#chats.values()], this.search.value).slice(0, MOST_SHOWN);
    const rows = chats.map(({ id, name, model }) => ({ id, name, model, open: id === this.#open }));
    this.rows.show(rows, this.#chats.size ? "No chat has these words." : "No chats yet.");
  }

  /** @param {{ id: string, name: string, model: string, open: boolean }} row */
  #row({ id, name, open }) {
    const chat = () => /** @type {Chat} */ (this.#chats.get(id));
    const opening = make("button", { type: "button", class: "quiet open-chat", "aria-current": open && "true", title: name }, name);
    opening.addEventListener("click", () => this.on.open(chat()));
    /** @param {string} text @param {() => void} does */
    const item = (text, does) => {
      const button = make("button", { type: "button", class: "quiet" }, text);
      button.addEventListener("click", () => {
        more.open = false;
        does();
      });
      return button;
    };
    const more = make(
      "details",
      { class: "more" },
      make("summary", { "aria-label": `More about ${name}` }, "⋯"),
      make(
        "div",
        { class: "menu" },
        item("Rename", () => this.#ask("rename", chat())),
        item("Export", () => this.#export([chat()], name)),
        item("Delete", () => this.#ask("delete", chat())),
      ),
    );
    more.addEventListener("focusout", ({ relatedTarget }) => {
      if (!(relatedTarget instanceof Node && more.contains(relatedTarget))) more.open = false;
    });
    return make("li", {}, opening, more);
  }

  #dialogs() {
    found("rename-form", HTMLFormElement).addEventListener("submit", () => {
      const name = found("rename-name", HTMLInputElement).value.trim();
      if (!this.#asked || !name) return;
      const chat = { ...this.#asked, name };
      this.on.renamed(chat);
      void this.keep(chat);
    });
    found("delete-form", HTMLFormElement).addEventListener("submit", () => {
      const chat = this.#asked;
      if (!chat) return;
      this.#chats.delete(chat.id);
      this.on.removed(chat);
      this.#draw();
      void this.#write(() => this.#store.remove(chat.id));
    });
  }

  /** @param {"rename" | "delete"} what @param {Chat} chat */
  #ask(what, chat) {
    this.#asked = chat;
    found("rename-name", HTMLInputElement).value = chat.name;
    found("delete-name", HTMLElement).textContent = chat.name;
    found(`${what}-dialog`, HTMLDialogElement).showModal();
  }

  /** @param {Chat[]} chats @param {string} name */
  #export(chats, name) {
    const url = URL.createObjectURL(new Blob([exported(chats)], { type: "application/json" }));
    const stem = name.replaceAll(/[^\p{L}\p{N}]+/gu, "-").replaceAll(/^-|-$/g, "") || "chat";
    make("a", { href: url, download: `sax-${stem}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  }

  /** @param {HTMLInputElement} file */
  async #import(file) {
    const [chosen] = file.files ?? [];
    if (!chosen) return;
    tell(this.trouble, "");
    try {
      const chats = imported(await chosen.text(), () => crypto.getRandomValues(new Uint32Array(4)).join("-"));
      for (const chat of chats) await this.keep(chat);
    } catch (error) {
      tell(this.trouble, error instanceof Error ? error.message : String(error));
    }
    file.value = "";
  }
}
