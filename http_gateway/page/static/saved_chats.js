/**
 * Chats as they are kept in the browser, and as files that are exported and imported. Pure.
 *
 * @typedef {import("./conversation.js").SavedNode} SavedNode
 * @typedef {{ id: string, name: string, model: string, changedMs: number, left: number, turns: SavedNode[] }} Chat
 */

import { attachmentsOf } from "./attachments.js";

const FORMAT = "sax-chats";
const LONGEST_NAME = 48;

/** The name of a chat that begins with this message: its first words. @param {string} text */
export function nameOf(text) {
  const words = text.trim().split(/\s+/);
  let name = words[0].slice(0, LONGEST_NAME);
  for (const word of words.slice(1)) {
    if (name.length + 1 + word.length > LONGEST_NAME) return `${name}…`;
    name += ` ${word}`;
  }
  return name;
}

/**
 * The chats in which every one of these words occurs, the newest first.
 * @param {Chat[]} chats
 * @param {string} words
 */
export function matching(chats, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return chats
    .filter((chat) => wanted.every((word) => textOf(chat).includes(word)))
    .sort((one, other) => other.changedMs - one.changedMs);
}

/** @param {Chat} chat */
function textOf(chat) {
  const said = chat.turns.map(({ turn }) => ("text" in turn ? turn.text : /** @type {any} */ (turn).answer.content));
  return [chat.name, ...said].join("\n").toLowerCase();
}

/** @param {Chat[]} chats @returns {string} the text of a file */
export function exported(chats) {
  return JSON.stringify({ format: FORMAT, version: 1, chats }, null, 1);
}

/**
 * Read the chats of a file.
 * @param {string} text
 * @param {() => string} newId
 * @returns {Chat[]} each with an id of its own
 * @throws {Error} in words for the user
 */
export function imported(text, newId) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON: choose one that Export wrote.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.chats)) {
    throw new Error(`The file holds no chats: Export writes {"format": "${FORMAT}", "chats": [...]}.`);
  }
  if (file.version !== 1) throw new Error("The chats were exported by a newer sax: update the gateway.");
  return file.chats.map((/** @type {any} */ chat, /** @type {number} */ at) => checked(chat, `chat ${at + 1}`, newId()));
}

/** @param {any} chat @param {string} what @param {string} id @returns {Chat} */
function checked(chat, what, id) {
  if (!Array.isArray(chat?.turns)) throw new Error(`The file is damaged: ${what} has no list of turns.`);
  const turns = chat.turns.map((/** @type {any} */ node, /** @type {number} */ at) => {
    const parent = node?.parent;
    if (!Number.isInteger(parent) || parent < -1 || parent >= at) {
      throw new Error(`The file is damaged: turn ${at + 1} of ${what} follows none that is before it.`);
    }
    return { turn: turnOf(node.turn, `turn ${at + 1} of ${what}`), parent, chosen: node.chosen === true };
  });
  const left = Number.isInteger(chat.left) && chat.left > 0 ? chat.left : 0;
  const changedMs = Number.isFinite(chat.changedMs) ? chat.changedMs : 0;
  return { id, name: word(chat.name) || "Imported", model: word(chat.model), changedMs, left, turns };
}

/** @param {any} turn @param {string} what */
function turnOf(turn, what) {
  switch (turn?.kind) {
    case "user":
      return { kind: "user", text: word(turn.text), ...filesOf(turn) };
    case "result":
      return { kind: "result", id: word(turn.id), name: word(turn.name), text: word(turn.text) };
    case "answer":
      return { kind: "answer", answer: answerOf(turn.answer ?? {}) };
    default:
      throw new Error(`The file is damaged: ${what} is neither a message, an answer nor a result.`);
  }
}

/** @param {any} turn @returns {{ files?: import("./attachments.js").Attachment[] }} */
function filesOf(turn) {
  const files = attachmentsOf(turn.files);
  return files.length ? { files } : {};
}

/** @param {any} answer */
function answerOf(answer) {
  const calls = Array.isArray(answer.calls) ? answer.calls : [];
  return {
    content: word(answer.content),
    reasoning: word(answer.reasoning),
    calls: calls.map((/** @type {any} */ call) => ({ id: word(call?.id), name: word(call?.name), arguments: word(call?.arguments) })),
    usage: usageOf(answer.usage),
    finish: word(answer.finish),
    error: word(answer.error),
  };
}

/** @param {any} usage */
function usageOf(usage) {
  const counts = ["prompt", "completion", "cached"].map((name) => usage?.[name]);
  if (!counts.every(Number.isFinite)) return null;
  return { prompt: counts[0], completion: counts[1], cached: counts[2] };
}

/** @param {unknown} value */
function word(value) {
  return typeof value === "string" ? value : "";
}
