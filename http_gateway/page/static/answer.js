/**
 * Answer: what has come of one streamed chat completion, and its times. Pure: the clock is passed in.
 *
 * @typedef {{ id: string, name: string, arguments: string }} ToolCall
 * @typedef {{ token: string, logprob: number, top: { token: string, logprob: number }[] }} Token
 * @typedef {{ prompt: number, completion: number, cached: number }} Usage
 */

const MARKED = /^\s*<think>(.*?)(?:<\/think>\s*(.*)|$)/s;

export class Answer {
  content = "";
  reasoning = "";
  /** @type {ToolCall[]} */
  calls = [];
  /** @type {Token[]} */
  tokens = [];
  /** @type {Usage | null} */
  usage = null;
  finish = "";
  error = "";
  /** @type {number | null} */
  firstMs = null;
  /** @type {number} */
  lastMs;

  /** @param {number} beganMs */
  constructor(beganMs) {
    this.beganMs = beganMs;
    this.lastMs = beganMs;
  }

  /**
   * Take one event of the stream.
   * @param {any} chunk
   * @param {number} nowMs
   */
  take(chunk, nowMs) {
    if (chunk.error) {
      this.error = String(chunk.error.message ?? "the stream broke");
      return;
    }
    if (chunk.usage) this.#count(chunk.usage);
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? {};
    this.content += delta.content ?? "";
    this.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
    for (const call of delta.tool_calls ?? []) this.#call(call);
    for (const token of choice.logprobs?.content ?? []) this.tokens.push(tokenOf(token));
    if (choice.finish_reason) this.finish = choice.finish_reason;
    if (delta.content || delta.reasoning_content || delta.reasoning || delta.tool_calls) {
      this.firstMs ??= nowMs;
      this.lastMs = nowMs;
    }
  }

  /** Take what follows as the rest of this answer. @param {number} nowMs */
  goOn(nowMs) {
    this.finish = this.error = "";
    this.beganMs = this.lastMs = nowMs;
    this.firstMs = this.usage = null;
  }

  /** True if nothing came of it. */
  get isEmpty() {
    return !this.content && !this.reasoning && !this.calls.length;
  }

  /** What is kept of it: all but the probabilities and the times. */
  get saved() {
    const { content, reasoning, calls, usage, finish, error } = this;
    return { content, reasoning, calls: calls.map((call) => ({ ...call })), usage, finish, error };
  }

  /** @param {object} saved as `saved` gives it */
  static of(saved) {
    return Object.assign(new Answer(0), saved);
  }

  /** Its reasoning and its text, apart also where the gateway knows nothing of a model's marks. */
  get parts() {
    const [, thought = "", text = ""] = (!this.reasoning && MARKED.exec(this.content)) || [];
    return thought || text ? { reasoning: thought.trim(), text } : { reasoning: this.reasoning, text: this.content };
  }

  /** Seconds to the first token; null before it. */
  get firstTokenS() {
    return this.firstMs === null ? null : (this.firstMs - this.beganMs) / 1000;
  }

  /** Tokens a second after the first one; null where that cannot be said. */
  get tokensPerS() {
    if (this.firstMs === null || !this.usage || this.usage.completion < 2) return null;
    const seconds = (this.lastMs - this.firstMs) / 1000;
    return seconds > 0 ? (this.usage.completion - 1) / seconds : null;
  }

  /** The message of the assistant, for the next request. */
  get message() {
    /** @type {Record<string, unknown>} */
    const message = { role: "assistant", content: this.content };
    if (this.calls.length) {
      message.tool_calls = this.calls.map(({ id, name, arguments: text }) => ({
        id,
        type: "function",
        function: { name, arguments: text },
      }));
    }
    return message;
  }

  /** @param {any} usage */
  #count(usage) {
    this.usage = {
      prompt: usage.prompt_tokens ?? 0,
      completion: usage.completion_tokens ?? 0,
      cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    };
  }

  /** @param {any} delta */
  #call(delta) {
    const call = (this.calls[delta.index ?? 0] ??= { id: "", name: "", arguments: "" });
    call.id = delta.id ?? call.id;
    call.name += delta.function?.name ?? "";
    call.arguments += delta.function?.arguments ?? "";
  }
}

/** @param {any} token @returns {Token} */
function tokenOf({ token, logprob, top_logprobs: top }) {
  return { token, logprob, top: top ?? [] };
}
