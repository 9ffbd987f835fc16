/** Asks the gateway that this page comes from, with the key that the user typed in. */

import { ofTab } from "./text_storage.js";

const KEPT = "sax-key";

export class ApiError extends Error {
  /**
   * @param {number} status 0: no answer came
   * @param {string} message
   */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The key, kept by this tab only. */
export function key() {
  return ofTab.get(KEPT);
}

/** @param {string} value "": forget it */
export function setKey(value) {
  ofTab.set(KEPT, value);
}

/**
 * @param {string} path relative to the page
 * @param {{ body?: unknown, method?: string, signal?: AbortSignal }} [request] with a body: POST
 * @returns {Promise<Response>} a good one
 * @throws {ApiError}
 */
export async function ask(path, { body, method = body === undefined ? "GET" : "POST", signal } = {}) {
  /** @type {Record<string, string>} */
  const headers = { accept: "application/json, text/event-stream" };
  if (key()) headers.authorization = `Bearer ${key()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let reply;
  try {
    reply = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      credentials: "omit",
      cache: "no-store",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "the gateway does not answer");
  }
  if (!reply.ok) throw new ApiError(reply.status, messageOf(await reply.text(), reply.status));
  return reply;
}

/**
 * The words of an error, of any of the gateway's kinds.
 * @param {string} text
 * @param {number} status
 * @returns {string}
 */
export function messageOf(text, status) {
  let told;
  try {
    told = JSON.parse(text);
  } catch {
    return text.slice(0, 500) || `the gateway answered ${status}`;
  }
  if (Array.isArray(told?.detail)) {
    return told.detail.map((/** @type {any} */ one) => `${one.loc?.join(".")}: ${one.msg}`).join("; ");
  }
  const message = told?.error?.message ?? told?.detail ?? told?.Error;
  return typeof message === "string" ? message : `the gateway answered ${status}`;
}
