/** The chat: sends messages, shows answers as they come, stops them, keeps what was said. */

import { complete } from "./completion.js";
import { Composer } from "./composer.js";
import { cutToFit, excess } from "./context_fit.js";
import { Conversation } from "./conversation.js";
import { found, make, tell } from "./element.js";
import { ModelChoice } from "./model_choice.js";
import { nameOf } from "./saved_chats.js";
import { SettingsForm } from "./settings_form.js";
import { Transcript } from "./transcript.js";

/** @import { Settings, Turn } from "./conversation.js" */
/** @import { TurnActions } from "./message_view.js" */
/** @import { Chat } from "./saved_chats.js" */

/**
 * The chat that is shown. `id`: "" before it is kept.
 * @typedef {{ conversation: Conversation, id: string, name: string }} OpenChat
 */

export class ChatView {
  /** @type {OpenChat} */
  #chat = { conversation: new Conversation(), id: "", name: "" };
  /** @type {AbortController | null} */
  #running = null;

  /** @param {{ unauthorized: (why: string) => void, changed: (chat: Chat) => void }} on */
  constructor(on) {
    this.on = on;
    this.composer = new Composer({ send: () => this.#say(), stop: () => this.stop() });
    this.state = found("answer-state", HTMLElement);
    this.form = new SettingsForm(found("settings", HTMLElement));
    this.transcript = new Transcript(found("transcript", HTMLElement), {
      actions: (turn) => this.#actions(turn),
      empty: () => "Ask the model something. Chats are kept in this browser, and nowhere else.",
    });
    this.model = new ModelChoice({
      chosen: (name) => {
        this.form.use(name);
        this.#enable();
      },
    });
    this.clear();
  }

  get busy() {
    return this.#running !== null;
  }

  /** The id of the chat that is shown; "" before its first message. */
  get id() {
    return this.#chat.id;
  }

  stop() {
    this.#running?.abort();
  }

  /** Begin a new conversation. */
  clear() {
    this.#open({ conversation: new Conversation(), id: "", name: "" });
  }

  /** Go on with a chat that was kept. @param {Chat} chat */
  open(chat) {
    this.model.want(chat.model);
    this.#open({ conversation: Conversation.of(chat.turns, chat.left), id: chat.id, name: chat.name });
  }

  /** Call the chat something else, so that it keeps that name. @param {string} name */
  rename(name) {
    this.#chat.name = name;
  }

  /** The body of the next request, with what is in the box. @throws {Error} if the settings are wrong */
  nextRequest() {
    const { conversation } = this.#chat;
    const last = conversation.turns.at(-1);
    const next = last ? conversation.branch(last) : new Conversation();
    if (!this.composer.isEmpty || !last) next.say(this.composer.text || "Hello", this.composer.files);
    return next.request(this.model.value, this.form.settings);
  }

  /** @param {OpenChat} chat */
  #open(chat) {
    this.stop();
    this.#chat = chat;
    this.transcript.streaming = null;
    this.transcript.tell("");
    this.transcript.show(chat.conversation);
    this.#enable();
  }

  #say() {
    const { text, files } = this.composer;
    if (this.composer.isEmpty || this.busy || !this.model.value) return;
    const { conversation } = this.#chat;
    // Calls that the user passes over have no result; the chat needs one for each.
    if (conversation.calls.length) conversation.give([]);
    conversation.say(text, files);
    this.composer.empty();
    void this.#ask({ asks: true });
  }

  /** @param {Turn} turn @returns {TurnActions} */
  #actions(turn) {
    /** @param {(conversation: Conversation) => void} does */
    const change = (does) => {
      if (this.busy) return;
      does(this.#chat.conversation);
      this.transcript.tell("");
      this.#changed(this.#chat);
    };
    /** @param {(conversation: Conversation) => void} does @param {boolean} [goesOn] */
    const askAfter = (does, goesOn = false) => {
      if (this.busy || !this.model.value) return;
      does(this.#chat.conversation);
      void this.#ask({ goesOn });
    };
    return {
      edit: (text) =>
        askAfter((now) => {
          now.retry(turn);
          now.say(text, turn.kind === "user" ? turn.files : []);
        }),
      again: () => askAfter((now) => turn.kind === "answer" && now.retry(turn)),
      goOn: () => askAfter(() => {}, true),
      give: (results) => askAfter((now) => now.give(results)),
      choose: (step) => change((now) => now.choose(turn, step)),
      remove: () => change((now) => now.remove(turn)),
      branch: () => {
        if (this.busy) return;
        const { conversation, name } = this.#chat;
        this.#open({ conversation: conversation.branch(turn), id: "", name: `${name} (branch)` });
        this.#changed(this.#chat);
        this.composer.focus();
      },
    };
  }

  /** @param {{ asks?: boolean, goesOn?: boolean }} how `asks`: the last turn was just sent */
  async #ask({ asks = false, goesOn = false }) {
    const chat = this.#chat;
    this.transcript.tell("");
    this.transcript.show(chat.conversation);
    const running = (this.#running = new AbortController());
    this.#enable();
    try {
      const settings = this.form.settings;
      if (!(await this.#fits(chat, settings, asks))) return;
      if (!running.signal.aborted) await this.#stream(chat, settings, running.signal, { asks, goesOn });
    } catch (error) {
      this.#failed(chat, error instanceof Error ? error.message : String(error), asks);
    } finally {
      if (this.#running === running) {
        this.#running = null;
        this.transcript.streaming = null;
      }
      this.#changed(chat);
      this.#enable();
    }
  }

  /**
   * @param {OpenChat} chat
   * @param {Settings} settings
   * @param {AbortSignal} signal
   * @param {{ asks: boolean, goesOn: boolean }} how
   */
  async #stream(chat, settings, signal, { asks, goesOn }) {
    const { conversation } = chat;
    const body = conversation.request(this.model.value, settings, goesOn);
    const answer = goesOn ? lastAnswer(conversation) : conversation.begin(performance.now());
    if (goesOn) answer.goOn(performance.now());
    const turn = /** @type {Turn} */ (conversation.turns.at(-1));
    if (settings.probabilities) this.transcript.showProbabilities(turn);
    this.transcript.streaming = turn;
    this.transcript.show(conversation);
    tell(this.state, "Answering");
    const status = await complete(body, answer, { signal, came: () => this.transcript.draw() });
    if (status === 401) this.on.unauthorized(answer.error);
    tell(this.state, answer.error ? "The answer failed" : "The answer is complete");
    if (!answer.isEmpty || !answer.error) return;
    conversation.drop(turn);
    this.#failed(chat, answer.error, asks);
  }

  /**
   * Say why there is no answer, and put the message that got none back into the box.
   * @param {OpenChat} chat @param {string} why @param {boolean} asks @param {...HTMLElement} remedies
   */
  #failed(chat, why, asks, ...remedies) {
    const { conversation } = chat;
    const last = conversation.turns.at(-1);
    const asked = asks && last?.kind === "user" ? last : null;
    if (asked) conversation.drop(asked);
    if (this.#chat !== chat) return;
    if (asked && this.composer.isEmpty) this.composer.fill(asked);
    this.transcript.tell(why, ...remedies);
  }

  /**
   * Whether the chat fits into the model's context; if not, let the user choose.
   * @param {OpenChat} chat @param {Settings} settings @param {boolean} asks
   */
  async #fits(chat, settings, asks) {
    const why = await excess(this.model.value, chat.conversation, settings);
    if (!why) return true;
    const drop = make("button", { type: "button", class: "primary" }, "Leave out the oldest turns and send");
    drop.addEventListener("click", () => void this.#shorten(chat, settings, asks));
    this.#failed(chat, why, asks, drop);
    return false;
  }

  /** Leave out turns until the chat fits, and ask. @param {OpenChat} chat @param {Settings} settings @param {boolean} asks */
  async #shorten(chat, settings, asks) {
    if (this.busy || this.#chat !== chat) return;
    if (asks) {
      chat.conversation.say(this.composer.text, this.composer.files);
      this.composer.empty();
    }
    chat.conversation.left = await cutToFit(this.model.value, chat.conversation, settings);
    await this.#ask({ asks });
  }

  /** @param {OpenChat} chat */
  #changed(chat) {
    const { turns, left, saved } = chat.conversation;
    if (this.#chat === chat) this.transcript.show(chat.conversation);
    if (!turns.length && !chat.id) return;
    chat.id ||= crypto.getRandomValues(new Uint32Array(4)).join("-");
    const first = turns.find((turn) => turn.kind === "user");
    chat.name ||= first?.kind === "user" ? nameOf(first.text) : "Empty chat";
    this.on.changed({ id: chat.id, name: chat.name, model: this.model.value, changedMs: Date.now(), left, turns: saved });
  }

  #enable() {
    this.composer.show({ busy: this.busy, able: Boolean(this.model.value) });
  }
}

/** @param {Conversation} conversation */
function lastAnswer(conversation) {
  const last = conversation.turns.at(-1);
  if (last?.kind !== "answer") throw new Error("there is no answer to go on with");
  return last.answer;
}
