/** The chat: its model, settings, box and conversation, kept by the browser. */

import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { found, tell } from "./element.js";
import { withMcpTools } from "./mcp_tools.js";
import { ModelChoice } from "./model_choice.js";
import { nameOf } from "./saved_chats.js";
import { SettingsForm } from "./settings_form.js";
import { Talk } from "./talk.js";

/** @import { Turn } from "./conversation.js" */
/** @import { Chat } from "./saved_chats.js" */

/** How a conversation is kept. `id`: "" before it is. @typedef {{ id: string, name: string, model: string }} Label */

export class ChatView {
  /** @type {WeakMap<Conversation, Label>} */
  #labels = new WeakMap();

  /** @param {{ unauthorized: (why: string) => void, changed: (chat: Chat) => void }} on */
  constructor(on) {
    this.on = on;
    this.composer = new Composer("", { send: () => this.#say(), stop: () => this.stop() });
    this.form = new SettingsForm(found("settings", HTMLElement));
    this.model = new ModelChoice(found("model-choice", HTMLElement), {
      id: "model",
      label: "Model",
      chosen: (name) => {
        this.form.use(name);
        this.#enable();
      },
    });
    const state = found("answer-state", HTMLElement);
    const of = {
      model: () => this.model.value,
      settings: () => this.form.settings,
      empty: "Ask the model something. Chats are kept in this browser, and nowhere else.",
    };
    this.talk = new Talk(found("transcript", HTMLElement), of, {
      changed: (conversation) => this.#changed(conversation),
      branched: (turn, conversation) => this.#branch(turn, conversation),
      returned: (turn) => {
        const { isEmpty } = this.composer;
        if (isEmpty) this.composer.fill(turn);
        return isEmpty;
      },
      taken: () => this.composer.take(),
      busy: () => this.#enable(),
      told: (text) => tell(state, text),
      unauthorized: on.unauthorized,
    });
    this.clear();
  }

  get busy() {
    return this.talk.busy;
  }

  /** The id of the chat that is shown; "" before its first message. */
  get id() {
    return this.#labels.get(this.talk.conversation)?.id ?? "";
  }

  stop() {
    this.talk.stop();
  }

  /** Begin a new conversation. */
  clear() {
    this.#open(new Conversation(), "");
  }

  /** Leave a chat that is kept no more, without a word on how its answer ends. */
  forget() {
    this.#labels.delete(this.talk.conversation);
    this.clear();
  }

  /** Go on with a chat that was kept. @param {Chat} chat */
  open({ id, name, model, turns, left }) {
    this.model.want(model);
    this.#open(Conversation.of(turns, left), name, id);
  }

  /** Open a copy of a conversation as a chat that is kept. @param {Conversation} conversation @param {string} model */
  take(conversation, model) {
    this.model.want(model);
    this.#open(conversation, "");
    this.#changed(conversation);
    this.composer.focus();
  }

  /** Call the chat something else, so that it keeps that name. @param {string} name */
  rename(name) {
    const label = this.#labels.get(this.talk.conversation);
    if (label) label.name = name;
  }

  /** The body of the next request, with what is in the box. @throws {Error} if the settings are wrong */
  async nextRequest() {
    const { conversation } = this.talk;
    const last = conversation.turns.at(-1);
    const next = last ? conversation.branch(last) : new Conversation();
    if (!this.composer.isEmpty || !last) next.say(this.composer.text || "Hello", this.composer.files);
    return next.request(this.model.value, await withMcpTools(this.form.settings));
  }

  /** @param {Conversation} conversation @param {string} name @param {string} [id] */
  #open(conversation, name, id = "") {
    this.#labels.set(conversation, { id, name, model: this.model.value });
    this.talk.open(conversation);
    this.#enable();
  }

  #say() {
    if (this.composer.isEmpty || this.busy || !this.model.value) return;
    const { text, files } = this.composer.take();
    this.talk.say(text, files);
  }

  /** @param {Turn} turn @param {Conversation} conversation */
  #branch(turn, conversation) {
    const branched = conversation.branch(turn);
    this.#open(branched, `${this.#labels.get(conversation)?.name} (branch)`);
    this.#changed(branched);
    this.composer.focus();
  }

  /** @param {Conversation} conversation */
  #changed(conversation) {
    const { turns, left, saved } = conversation;
    const label = this.#labels.get(conversation);
    if (!label || (!turns.length && !label.id)) return;
    // One that is left while it answers keeps the model that answered.
    if (conversation === this.talk.conversation) label.model = this.model.value;
    label.id ||= crypto.getRandomValues(new Uint32Array(4)).join("-");
    const first = turns.find((turn) => turn.kind === "user");
    label.name ||= first?.kind === "user" ? nameOf(first.text) : "Empty chat";
    this.on.changed({ ...label, changedMs: Date.now(), left, turns: saved });
  }

  #enable() {
    this.composer.show({ busy: this.busy, able: Boolean(this.model.value) });
  }
}
