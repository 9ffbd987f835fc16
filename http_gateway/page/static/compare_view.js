/** Two models side by side: one question goes to both, each with its own settings. */

import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { found, make, tell } from "./element.js";
import { ModelChoice } from "./model_choice.js";
import { SettingsForm } from "./settings_form.js";
import { Talk } from "./talk.js";
import { ofBrowser } from "./text_storage.js";

const KEPT = "sax-compared";
const SIDES = ["left", "right"];

export class CompareView {
  /** @param {{ unauthorized: (why: string) => void, branched: (conversation: Conversation, model: string) => void }} on */
  constructor(on) {
    this.composer = new Composer("compare-", { send: () => this.#say(), stop: () => this.stop() });
    this.columns = SIDES.map((side) => new Column(found(`compare-${side}`, HTMLElement), side, { ...on, busy: () => this.#enable() }));
    found("compare-clear", HTMLButtonElement).addEventListener("click", () => this.clear());
    this.clear();
  }

  get busy() {
    return this.columns.some((column) => column.talk.busy);
  }

  stop() {
    for (const { talk } of this.columns) talk.stop();
  }

  clear() {
    for (const { talk } of this.columns) talk.open(new Conversation());
    this.#enable();
  }

  /** Offer these models on both sides; the second side begins with the second model. @param {string[]} names */
  offer(names) {
    const kept = JSON.parse(ofBrowser.get(KEPT) || "[]");
    this.columns.forEach(({ model }, at) => {
      if (!model.value) model.want(kept[at] ?? names[at] ?? "");
      model.offer(names);
    });
    this.#enable();
  }

  #say() {
    if (this.composer.isEmpty || this.busy || !this.#able) return;
    const { text, files } = this.composer.take();
    for (const { talk } of this.columns) talk.say(text, files);
    ofBrowser.set(KEPT, JSON.stringify(this.columns.map(({ model }) => model.value)));
  }

  get #able() {
    return this.columns.every(({ model }) => model.value);
  }

  #enable() {
    // The columns are made one after the other, and each tells of its model.
    if (this.columns) this.composer.show({ busy: this.busy, able: this.#able });
  }
}

class Column {
  /**
   * @param {HTMLElement} into
   * @param {string} side
   * @param {{ unauthorized: (why: string) => void, branched: (conversation: Conversation, model: string) => void, busy: () => void }} on
   */
  constructor(into, side, on) {
    const choice = make("span");
    const settings = make("div", { class: "settings" });
    const transcript = make("div", { class: "transcript", role: "log", "aria-label": `Conversation, ${side}`, "aria-live": "off", tabindex: "0" });
    const state = make("p", { class: "unseen", role: "status" });
    into.append(
      make("div", { class: "chat-head" }, choice),
      make("details", { class: "own-settings" }, make("summary", {}, "Settings"), settings),
      transcript,
      state,
    );
    this.form = new SettingsForm(settings, side);
    this.model = new ModelChoice(choice, {
      id: `model-${side}`,
      label: `Model, ${side}`,
      chosen: (name) => {
        this.form.use(name);
        on.busy();
      },
    });
    const of = { model: () => this.model.value, settings: () => this.form.settings, empty: "The same question goes to both models. Branch keeps one side as a chat." };
    this.talk = new Talk(transcript, of, {
      changed: () => {},
      branched: (turn, conversation) => on.branched(conversation.branch(turn), this.model.value),
      returned: () => false, // it stays, to be asked again: the other side may have answered
      taken: () => ({ text: "", files: [] }),
      busy: on.busy,
      told: (text) => tell(state, text),
      unauthorized: on.unauthorized,
    });
  }
}
