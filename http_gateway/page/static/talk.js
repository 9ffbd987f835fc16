/** A conversation with a model: asks for answers, shows them as they come, runs calls of tools, stops. */

import { complete } from "./completion.js";
import { cutToFit, excess } from "./context_fit.js";
import { Conversation } from "./conversation.js";
import { make } from "./element.js";
import { made, serverOf, withMcpTools } from "./mcp_tools.js";
import { Transcript } from "./transcript.js";

/** @import { ToolCall } from "./answer.js" */
/** @import { Attachment } from "./attachments.js" */
/** @import { Settings, Turn, UserTurn } from "./conversation.js" */
/** @import { TurnActions } from "./message_view.js" */

const KEEP_MS = 3000; // between two states of an answer that is coming
const MOST_ROUNDS = 16; // of calls that run by themselves, before a person is asked again

/**
 * @typedef {object} TalkEvents
 * @property {(conversation: Conversation) => void} changed a turn was added, ended or removed
 * @property {(turn: Turn, conversation: Conversation) => void} branched at this turn
 * @property {(turn: UserTurn) => boolean} returned a message got no answer; true: it went back into the box
 * @property {() => { text: string, files: Attachment[] }} taken what is in the box, which is empty then
 * @property {() => void} busy it begins to answer, or ends
 * @property {(text: string) => void} told for who cannot see the answer
 * @property {(why: string) => void} unauthorized
 */

export class Talk {
  /** @type {AbortController | null} */
  #running = null;
  conversation = new Conversation();

  /**
   * @param {HTMLElement} into
   * @param {{ model: () => string, settings: () => Settings, empty: string }} of
   * @param {TalkEvents} on
   */
  constructor(into, of, on) {
    this.of = of;
    this.on = on;
    this.transcript = new Transcript(into, { actions: (turn) => this.#actions(turn), empty: () => of.empty });
  }

  get busy() {
    return this.#running !== null;
  }

  stop() {
    this.#running?.abort();
  }

  /** Show another conversation. @param {Conversation} conversation */
  open(conversation) {
    this.stop();
    this.conversation = conversation;
    this.transcript.streaming = null;
    this.transcript.tell("");
    this.transcript.show(conversation);
  }

  /** Send a message. @param {string} text @param {Attachment[]} files */
  say(text, files) {
    const { conversation } = this;
    const last = conversation.turns.at(-1);
    // Calls that the user passes over have no result; the chat needs one for each.
    if (conversation.calls.length) conversation.give([]);
    else if (last?.kind === "user") conversation.retry(last); // it got no answer
    conversation.say(text, files);
    void this.#ask({ asks: true });
  }

  /** @param {Turn} turn @returns {TurnActions} */
  #actions(turn) {
    /** @param {(conversation: Conversation) => void} does */
    const change = (does) => {
      if (this.busy) return;
      does(this.conversation);
      this.transcript.tell("");
      this.#changed(this.conversation);
    };
    /** @param {(conversation: Conversation) => void} does @param {boolean} [goesOn] */
    const askAfter = (does, goesOn = false) => {
      if (this.busy || !this.of.model()) return;
      does(this.conversation);
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
      runner: ({ name }) => serverOf(name, this.#servers()),
      run: (call) => made(serverOf(call.name, this.#servers()), call),
      choose: (step) => change((now) => now.choose(turn, step)),
      remove: () => change((now) => now.remove(turn)),
      branch: () => this.busy || this.on.branched(turn, this.conversation),
    };
  }

  #servers() {
    try {
      return this.of.settings().servers;
    } catch {
      return []; // the settings are wrong, which the next request tells
    }
  }

  /** @param {{ asks?: boolean, goesOn?: boolean, cuts?: boolean }} how `asks`: the last turn was just sent; `cuts`: the oldest are left out so that it fits */
  async #ask({ asks = false, goesOn = false, cuts = false }) {
    const { conversation } = this;
    this.transcript.tell("");
    this.transcript.show(conversation);
    const running = (this.#running = new AbortController());
    this.on.busy();
    try {
      const settings = await withMcpTools(this.of.settings());
      if (cuts) conversation.left = await cutToFit(this.of.model(), conversation, settings);
      if (!(await this.#fits(conversation, settings, asks)) || running.signal.aborted) return;
      await this.#answer(conversation, settings, running.signal, { asks, goesOn });
    } catch (error) {
      this.#failed(conversation, error instanceof Error ? error.message : String(error), asks);
    } finally {
      if (this.#running === running) {
        this.#running = null;
        this.transcript.streaming = null;
      }
      this.#changed(conversation);
      this.on.busy();
    }
  }

  /**
   * Answer, and go on after calls that may run by themselves.
   * @param {Conversation} conversation @param {Settings} settings @param {AbortSignal} signal
   * @param {{ asks: boolean, goesOn: boolean }} how
   */
  async #answer(conversation, settings, signal, how) {
    await this.#stream(conversation, settings, signal, how);
    for (let round = 0; round < MOST_ROUNDS && settings.runs && !signal.aborted; round++) {
      const { calls } = conversation;
      if (!calls.length || !calls.every(({ name }) => serverOf(name, settings.servers))) return;
      const results = await Promise.all(calls.map((call) => made(serverOf(call.name, settings.servers), call, signal)));
      if (signal.aborted) return;
      conversation.give(results);
      this.#changed(conversation);
      await this.#stream(conversation, settings, signal, { asks: false, goesOn: false });
    }
  }

  /**
   * @param {Conversation} conversation @param {Settings} settings @param {AbortSignal} signal
   * @param {{ asks: boolean, goesOn: boolean }} how
   */
  async #stream(conversation, settings, signal, { asks, goesOn }) {
    const body = conversation.request(this.of.model(), settings, goesOn);
    const answer = goesOn ? lastAnswer(conversation) : conversation.begin(performance.now());
    if (goesOn) answer.goOn(performance.now());
    const turn = /** @type {Turn} */ (conversation.turns.at(-1));
    if (settings.probabilities) this.transcript.showProbabilities(turn);
    this.transcript.streaming = turn;
    if (this.conversation === conversation) this.transcript.show(conversation);
    this.on.told("Answering");
    let keptMs = -KEEP_MS;
    const came = () => {
      this.transcript.draw();
      if (answer.isEmpty || performance.now() - keptMs < KEEP_MS) return;
      keptMs = performance.now();
      this.on.changed(conversation); // a tab may be closed at any time
    };
    const status = await complete(body, answer, { signal, came });
    if (this.transcript.streaming === turn) this.transcript.streaming = null;
    if (status === 401) this.on.unauthorized(answer.error);
    this.on.told(answer.error ? "The answer failed" : "The answer is complete");
    if (!answer.isEmpty || !answer.error) return;
    conversation.drop(turn);
    this.#failed(conversation, answer.error, asks);
  }

  /**
   * Say why there is no answer, and put the message that got none back.
   * @param {Conversation} conversation @param {string} why @param {boolean} asks @param {...HTMLElement} remedies
   */
  #failed(conversation, why, asks, ...remedies) {
    const last = conversation.turns.at(-1);
    if (this.conversation !== conversation) return; // the message stays, to be asked again
    if (asks && last?.kind === "user" && this.on.returned(last)) conversation.drop(last);
    this.transcript.tell(why, ...remedies);
  }

  /**
   * Whether the chat fits into the model's context; if not, let the user choose.
   * @param {Conversation} conversation @param {Settings} settings @param {boolean} asks
   */
  async #fits(conversation, settings, asks) {
    const why = await excess(this.of.model(), conversation, settings);
    if (!why) return true;
    const drop = make("button", { type: "button", class: "primary" }, "Leave out the oldest turns and send");
    drop.addEventListener("click", () => void this.#shorten(conversation));
    this.#failed(conversation, why, asks, drop);
    return false;
  }

  /** Leave out turns until the chat fits, and ask. @param {Conversation} conversation */
  async #shorten(conversation) {
    if (this.busy || this.conversation !== conversation) return;
    const asks = conversation.turns.at(-1)?.kind !== "user";
    if (asks) {
      const { text, files } = this.on.taken();
      if (!text.trim() && !files.length) return;
      conversation.say(text, files);
    }
    await this.#ask({ asks, cuts: true });
  }

  /** @param {Conversation} conversation */
  #changed(conversation) {
    if (this.conversation === conversation) this.transcript.show(conversation);
    this.on.changed(conversation);
  }
}

/** @param {Conversation} conversation */
function lastAnswer(conversation) {
  const last = conversation.turns.at(-1);
  if (last?.kind !== "answer") throw new Error("there is no answer to go on with");
  return last.answer;
}
