/**
 * Conversation: the turns of a chat, and the request for the next answer. Pure.
 *
 * @typedef {{ kind: "user", text: string }} UserTurn
 * @typedef {{ kind: "answer", answer: import("./answer.js").Answer }} AnswerTurn
 * @typedef {{ kind: "result", id: string, name: string, text: string }} ResultTurn
 * @typedef {UserTurn | AnswerTurn | ResultTurn} Turn
 * @typedef {object} Settings
 * @property {string} system
 * @property {Record<string, unknown>} sampling fields of the request that are not empty
 * @property {unknown[]} tools
 * @property {string} toolChoice
 * @property {boolean} probabilities
 */

import { Answer } from "./answer.js";

export class Conversation {
  /** @type {Turn[]} */
  turns = [];

  /** @param {string} text */
  say(text) {
    this.turns.push({ kind: "user", text });
  }

  /** @param {number} nowMs */
  begin(nowMs) {
    const answer = new Answer(nowMs);
    this.turns.push({ kind: "answer", answer });
    return answer;
  }

  /**
   * Give the results of the calls of the last answer, in their order.
   * @param {string[]} results
   */
  give(results) {
    this.calls.forEach(({ id, name }, index) => {
      this.turns.push({ kind: "result", id, name, text: results[index] ?? "" });
    });
  }

  /** Calls that wait for their results. */
  get calls() {
    const last = this.turns.at(-1);
    return last?.kind === "answer" && !last.answer.error ? last.answer.calls : [];
  }

  /** Take back the last answer, to ask for it again. */
  takeBack() {
    if (this.turns.at(-1)?.kind === "answer") this.turns.pop();
  }

  /**
   * The body of a request for the next answer.
   * @param {string} model
   * @param {Settings} settings
   */
  request(model, settings) {
    /** @type {Record<string, unknown>} */
    const body = {
      ...settings.sampling,
      model,
      messages: this.#messages(settings.system),
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    };
    if (settings.tools.length) Object.assign(body, { tools: settings.tools, tool_choice: settings.toolChoice });
    if (settings.probabilities) Object.assign(body, { logprobs: true, top_logprobs: 5 });
    return body;
  }

  /** @param {string} system */
  #messages(system) {
    const first = system.trim() ? [{ role: "system", content: system }] : [];
    return [...first, ...this.turns.flatMap(messagesOf)];
  }
}

/** @param {Turn} turn @returns {Record<string, unknown>[]} */
function messagesOf(turn) {
  if (turn.kind === "user") return [{ role: "user", content: turn.text }];
  if (turn.kind === "result") return [{ role: "tool", tool_call_id: turn.id, content: turn.text }];
  // An answer that never began is no turn of the model's.
  const { answer } = turn;
  return answer.content || answer.calls.length ? [answer.message] : [];
}
