/** Shows the turns of a conversation, and follows its end unless the reader has scrolled away. */

import { make } from "./element.js";
import { AnswerView, ResultView, UserView } from "./message_view.js";

/** @import { Conversation, Turn } from "./conversation.js" */
/** @import { TurnActions } from "./message_view.js" */

const AT_END_PX = 60;

export class Transcript {
  /** @type {Map<Turn, UserView | ResultView | AnswerView>} */
  #views = new Map();
  #drawing = false;
  /** Until the next drawing may begin; a long list takes long to read again. */
  #restMs = 0;
  /** Answers whose tokens are shown with their probabilities. @type {WeakSet<Turn>} */
  #probable = new WeakSet();

  /**
   * @param {HTMLElement} into
   * @param {{ actions: (turn: Turn) => TurnActions, empty: () => string }} of
   */
  constructor(into, of) {
    this.into = into;
    this.of = of;
    this.notice = make("div", { class: "notices" });
    /** @type {Conversation | null} */
    this.shown = null;
    /** The turn that streams. @type {Turn | null} */
    this.streaming = null;
  }

  /** Show the answer's tokens with their probabilities. @param {Turn} turn */
  showProbabilities(turn) {
    this.#probable.add(turn);
  }

  /** @param {Conversation} conversation */
  show(conversation) {
    const reads = !this.#isAtEnd() && this.shown === conversation;
    if (this.shown !== conversation) this.#views.clear();
    this.shown = conversation;
    const turns = conversation.turns;
    const views = turns.map((turn) => this.#view(turn));
    this.#views = new Map(turns.map((turn, at) => [turn, views[at]]));
    const nodes = [...views.map((view) => view.node), ...(turns.length ? [] : [this.#empty()]), this.notice];
    nodes.forEach((node, at) => {
      if (this.into.childNodes[at] !== node) this.into.insertBefore(node, this.into.childNodes[at] ?? null);
    });
    while (this.into.childNodes.length > nodes.length) this.into.lastChild?.remove();
    turns.forEach((turn, at) => this.#show(turn, at === turns.length - 1, at < conversation.left));
    if (!reads) this.#toEnd();
  }

  /** Show what has come of the answer that streams: at most once a frame, in a fifth of the time. */
  draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    setTimeout(() => requestAnimationFrame(() => this.#drawNow()), this.#restMs);
  }

  #drawNow() {
    this.#drawing = false;
    const began = performance.now();
    const follows = this.#isAtEnd();
    if (this.streaming && this.#views.has(this.streaming)) this.#show(this.streaming, true, false);
    if (follows) this.#toEnd();
    this.#restMs = 4 * (performance.now() - began);
  }

  /** Say something below the last turn; "": nothing. @param {string} text @param {...HTMLElement} more */
  tell(text, ...more) {
    this.notice.replaceChildren(
      ...(text ? [make("p", { class: "trouble", role: "alert" }, text), make("p", { class: "actions" }, ...more)] : []),
    );
    if (text) this.#toEnd();
  }

  /** @param {Turn} turn */
  #view(turn) {
    const known = this.#views.get(turn);
    if (known) return known;
    const on = this.of.actions(turn);
    if (turn.kind === "user") return new UserView(turn, on);
    if (turn.kind === "result") return new ResultView(turn.name, turn.text, on);
    return new AnswerView(turn.answer, this.#probable.has(turn), on);
  }

  /** @param {Turn} turn @param {boolean} last @param {boolean} unsent */
  #show(turn, last, unsent) {
    const version = this.shown?.version(turn) ?? { at: 1, of: 1 };
    this.#views.get(turn)?.show({ over: turn !== this.streaming, last, version, unsent });
  }

  #empty() {
    return make("p", { class: "empty dim" }, this.of.empty());
  }

  #isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.into;
    return scrollHeight - scrollTop - clientHeight < AT_END_PX;
  }

  #toEnd() {
    this.into.scrollTop = this.into.scrollHeight;
  }
}
