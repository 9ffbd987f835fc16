/** Asks for a chat completion and reads its stream into an answer. */

import { ApiError, ask } from "./api.js";
import { EventReader } from "./sse.js";

/** @import { Answer } from "./answer.js" */

/**
 * What goes wrong is told by the answer.
 * @param {object} body
 * @param {Answer} answer
 * @param {{ signal: AbortSignal, came: () => void }} on `came`: after each piece
 * @returns {Promise<number>} the status of a reply that refuses, 0 if there is none
 */
export async function complete(body, answer, on) {
  try {
    await read(await ask("v1/chat/completions", { body, signal: on.signal }), answer, on.came);
  } catch (error) {
    if (on.signal.aborted) answer.finish = "stopped";
    else answer.error = error instanceof Error ? error.message : String(error);
    if (error instanceof ApiError) return error.status;
  }
  return 0;
}

/** @param {Response} reply @param {Answer} answer @param {() => void} came */
async function read(reply, answer, came) {
  const events = new EventReader();
  const text = new TextDecoder();
  const stream = /** @type {ReadableStream<Uint8Array>} */ (reply.body).getReader();
  for (;;) {
    const { done, value } = await stream.read();
    for (const data of events.push(text.decode(value, { stream: !done }))) {
      if (data === "[DONE]") return;
      answer.take(JSON.parse(data), performance.now());
    }
    came();
    if (done) break;
  }
  if (!answer.finish && !answer.error) answer.error = "the answer broke off";
}

/**
 * Count the tokens of a chat.
 * @param {object} body of /tokenize
 * @returns {Promise<{ count: number, most: number } | null>} null where the gateway does not tell
 */
export async function counted(body) {
  try {
    const { count, max_model_len: most } = await (await ask("tokenize", { body })).json();
    return { count, most };
  } catch {
    return null; // the request itself tells what is wrong
  }
}
