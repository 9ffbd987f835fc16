/** Chats are named, searched, exported and imported; a damaged or hostile file is refused in words. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Conversation } from "./page/conversation.js";
import { exported, imported, matching, nameOf } from "./page/saved_chats.js";

/** @param {string} id @param {string} text @param {number} changedMs */
function chat(id, text, changedMs) {
  const talk = new Conversation();
  talk.say(text);
  talk.begin(0).take({ choices: [{ delta: { content: `About ${text}` }, finish_reason: "stop" }] }, 1);
  return { id, name: nameOf(text), model: "/sax/test/m", changedMs, left: 0, turns: talk.saved };
}

test("a chat is named by its first words", () => {
  assert.equal(nameOf("  Hello\n\n there "), "Hello there");
  assert.equal(nameOf("one two three four five six seven eight nine ten eleven"), "one two three four five six seven eight nine ten…");
  assert.equal(nameOf("x".repeat(200)).length, 48);
});

test("every word of a search must occur, and the newest come first", () => {
  const chats = [chat("1", "Boats of Norway", 1), chat("2", "Trains of Norway", 2), chat("3", "Boats", 3)];
  assert.deepEqual(matching(chats, "norway").map(({ id }) => id), ["2", "1"]);
  assert.deepEqual(matching(chats, " BOATS  about ").map(({ id }) => id), ["3", "1"]);
  assert.deepEqual(matching(chats, "").length, 3);
});

test("what is exported is imported with new ids", () => {
  const chats = [chat("1", "Boats", 1), chat("2", "Trains", 2)];
  let next = 10;
  const back = imported(exported(chats), () => String(next++));
  assert.deepEqual(back, chats.map((each, at) => ({ ...each, id: String(10 + at) })));
});

test("a file that is not ours is refused in words", () => {
  /** @param {unknown} turns */
  const file = (turns) => JSON.stringify({ format: "sax-chats", version: 1, chats: [{ turns }] });
  const user = { kind: "user", text: "x" };
  /** @type {[string, RegExp][]} */
  const bad = [
    ["", /not JSON/],
    ["[]", /holds no chats/],
    ['{"format": "sax-chats", "version": 2, "chats": []}', /newer sax/],
    [file(null), /chat 1 has no list/],
    [file([{ turn: user, parent: 0, chosen: true }]), /turn 1 of chat 1/],
    [file([{ turn: user, parent: -1 }, { turn: { kind: "script" }, parent: 0 }]), /turn 2 of chat 1/],
  ];
  for (const [text, words] of bad) assert.throws(() => imported(text, () => "id"), words, text);
});

test("fields of other types than ours become empty ones", () => {
  const turn = { kind: "answer", answer: { content: { html: 1 }, calls: [null, { name: 5 }], usage: { prompt: "9" } } };
  const [one] = imported(JSON.stringify({ format: "sax-chats", version: 1, chats: [{ name: 7, turns: [{ turn, parent: -1, chosen: true }] }] }), () => "id");
  assert.equal(one.name, "Imported");
  const empty = { id: "", name: "", arguments: "" };
  assert.deepEqual(/** @type {any} */ (one.turns[0].turn).answer, { content: "", reasoning: "", calls: [empty, empty], usage: null, finish: "", error: "" });
});
