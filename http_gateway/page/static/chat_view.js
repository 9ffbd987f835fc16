/** The chat: sends messages, shows answers as they come, stops them. */

import { ApiError, ask } from "./api.js";
import { Conversation } from "./conversation.js";
import { found, make, tell } from "./element.js";
import { AnswerView, resultMessage, userMessage } from "./message_view.js";
import { SettingsForm } from "./settings_form.js";
import { EventReader } from "./sse.js";

/** @import { Answer } from "./answer.js" */
/** @import { Settings } from "./conversation.js" */

export class ChatView {
  #conversation = new Conversation();
  /** @type {AbortController | null} */
  #running = null;
  /** @type {{ view: AnswerView, answer: Answer, probabilities: boolean } | null} */
  #last = null;
  #drawing = false;

  /** @param {{ unauthorized: (why: string) => void }} on */
  constructor(on) {
    this.on = on;
    this.model = found("model", HTMLSelectElement);
    this.transcript = found("transcript", HTMLElement);
    this.prompt = found("prompt", HTMLTextAreaElement);
    this.send = found("send", HTMLButtonElement);
    this.stopping = found("stop", HTMLButtonElement);
    this.state = found("answer-state", HTMLElement);
    this.form = new SettingsForm(found("settings", HTMLElement));
    found("composer", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      this.#say();
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#say();
    });
    this.stopping.addEventListener("click", () => this.stop());
    this.clear();
  }

  get busy() {
    return this.#running !== null;
  }

  /**
   * Offer these models, and keep the one that is chosen.
   * @param {string[]} names
   */
  offer(names) {
    const options = [...this.model.options].map((option) => option.value);
    if (options.join(" ") === names.join(" ") && options.length) return;
    const chosen = this.model.value;
    const shown = names.map((name) => make("option", { value: name }, name.split("/").at(-1) ?? name));
    this.model.replaceChildren(...(shown.length ? shown : [make("option", { value: "" }, "no model is ready")]));
    if (names.includes(chosen)) this.model.value = chosen;
    this.#enable();
  }

  stop() {
    this.#running?.abort();
  }

  /** Begin a new conversation. */
  clear() {
    this.stop();
    this.#conversation = new Conversation();
    this.#last = null;
    this.transcript.replaceChildren(make("p", { class: "empty dim" }, "Ask the model something. Nothing is kept when this tab is closed."));
    this.#enable();
  }

  #say() {
    const text = this.prompt.value.trim();
    if (!text || this.busy || !this.model.value) return;
    if (!this.#conversation.turns.length) this.transcript.replaceChildren();
    // Calls that the user passes over have no result; the chat needs one for each.
    if (this.#conversation.calls.length) this.#give([]);
    this.#conversation.say(text);
    this.transcript.append(userMessage(text));
    this.prompt.value = "";
    void this.#ask();
  }

  /** @param {string[]} results */
  #give(results) {
    const calls = this.#conversation.calls;
    this.#conversation.give(results);
    calls.forEach(({ name }, index) => this.transcript.append(resultMessage(name, results[index] ?? "")));
  }

  async #ask() {
    let settings;
    try {
      settings = this.form.settings;
    } catch (error) {
      this.transcript.append(make("p", { class: "trouble", role: "alert" }, String(error)));
      return;
    }
    this.#settle();
    const conversation = this.#conversation;
    const body = conversation.request(this.model.value, settings);
    const answer = conversation.begin(performance.now());
    const view = this.#newView();
    this.#last = { view, answer, probabilities: settings.probabilities };
    this.transcript.append(view.node);
    this.#draw();
    await this.#run(body, answer);
    if (this.#conversation === conversation) this.#settle(true);
    else view.show(answer, { over: true, last: false, probabilities: settings.probabilities });
  }

  #newView() {
    return new AnswerView({
      give: (results) => {
        if (this.busy) return;
        this.#give(results);
        void this.#ask();
      },
      again: () => {
        if (this.busy) return;
        this.#conversation.takeBack();
        this.#last?.view.node.remove();
        this.#last = null;
        void this.#ask();
      },
    });
  }

  /** @param {object} body @param {Answer} answer */
  async #run(body, answer) {
    const running = (this.#running = new AbortController());
    this.#enable();
    tell(this.state, "Answering");
    try {
      const reply = await ask("v1/chat/completions", { body, signal: running.signal });
      await this.#read(reply, answer);
    } catch (error) {
      if (running.signal.aborted) answer.finish = "stopped";
      else answer.error = error instanceof Error ? error.message : String(error);
      if (error instanceof ApiError && error.status === 401) this.on.unauthorized(error.message);
    } finally {
      if (this.#running === running) this.#running = null;
      this.#enable();
      tell(this.state, answer.error ? "The answer failed" : "The answer is complete");
    }
  }

  /** @param {Response} reply @param {Answer} answer */
  async #read(reply, answer) {
    const events = new EventReader();
    const text = new TextDecoder();
    const body = /** @type {ReadableStream<Uint8Array>} */ (reply.body).getReader();
    for (;;) {
      const { done, value } = await body.read();
      for (const data of events.push(text.decode(value, { stream: !done }))) {
        if (data === "[DONE]") return;
        answer.take(JSON.parse(data), performance.now());
      }
      this.#draw();
      if (done) break;
    }
    if (!answer.finish && !answer.error) answer.error = "the answer broke off";
  }

  /** Show what has come, at most once a frame. */
  #draw() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      const atEnd = this.transcript.scrollHeight - this.transcript.scrollTop - this.transcript.clientHeight < 60;
      if (this.busy && this.#last) {
        const { view, answer, probabilities } = this.#last;
        view.show(answer, { over: false, last: true, probabilities });
      }
      if (atEnd) this.transcript.scrollTop = this.transcript.scrollHeight;
    });
  }

  /** Show the last answer as one that is over. */
  #settle(last = false) {
    if (!this.#last) return;
    const { view, answer, probabilities } = this.#last;
    view.show(answer, { over: true, last, probabilities });
    this.transcript.scrollTop = this.transcript.scrollHeight;
  }

  #enable() {
    this.send.hidden = this.busy;
    this.stopping.hidden = !this.busy;
    this.send.disabled = !this.model.value;
  }
}
