/** A conversation asks for the next answer with all that was said, and keeps every version of a turn. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Conversation } from "./page/conversation.js";

const PLAIN = { system: "", sampling: {}, tools: [], toolChoice: "auto", schema: null, probabilities: false };
/** @param {object} delta */
const chunk = (delta) => ({ choices: [{ delta }] });

/** A conversation of these texts, the user's and the model's in turn. @param {...string} texts */
function said(...texts) {
  const talk = new Conversation();
  texts.forEach((text, at) => (at % 2 ? talk.begin(0).take(chunk({ content: text }), 1) : talk.say(text)));
  return talk;
}

/** @param {Conversation} talk */
const texts = (talk) => talk.turns.map((turn) => (turn.kind === "answer" ? turn.answer.content : turn.text));

test("a request holds the system prompt, every turn and the fields", () => {
  const talk = new Conversation();
  talk.say("hi");
  talk.begin(0).take(chunk({ content: "hello", reasoning: "not sent" }), 1);
  talk.say("more");
  const settings = { ...PLAIN, system: "Be brief.", sampling: { temperature: 0 }, probabilities: true };
  const body = talk.request("m", settings);
  assert.deepEqual(body.messages, [
    { role: "system", content: "Be brief." },
    { role: "user", content: "hi" },
    { role: "assistant", content: "hello" },
    { role: "user", content: "more" },
  ]);
  assert.deepEqual([body.model, body.temperature, body.logprobs, body.top_logprobs, body.stream], ["m", 0, true, 5, true]);
  assert.ok(!("tools" in body || "response_format" in body));
  const schema = { type: "object" };
  assert.deepEqual(talk.request("m", { ...PLAIN, schema }).response_format, { type: "json_schema", json_schema: { name: "answer", schema } });
});

test("results follow the calls that they are of", () => {
  const talk = new Conversation();
  talk.say("weather?");
  talk.begin(0).take(chunk({ tool_calls: [{ index: 0, id: "c1", function: { name: "f", arguments: "{}" } }] }), 1);
  assert.equal(talk.calls.length, 1);
  talk.give(["sunny"]);
  assert.equal(talk.calls.length, 0);
  const tools = [{ type: "function", function: { name: "f" } }];
  const body = /** @type {any} */ (talk.request("m", { ...PLAIN, tools, toolChoice: "required" }));
  assert.deepEqual(body.messages.slice(1), [
    { role: "assistant", content: "", tool_calls: [{ id: "c1", type: "function", function: { name: "f", arguments: "{}" } }] },
    { role: "tool", tool_call_id: "c1", content: "sunny" },
  ]);
  assert.deepEqual([body.tools, body.tool_choice], [tools, "required"]);
});

test("an answer that never began is not sent, and the one before it comes back", () => {
  const talk = said("hi", "hello");
  talk.retry(talk.turns[1]);
  talk.begin(0).take({ error: { message: "no" } }, 1);
  assert.equal(/** @type {any} */ (talk.request("m", PLAIN)).messages.length, 1);
  talk.drop(talk.turns[1]);
  assert.deepEqual(texts(talk), ["hi", "hello"]);
});

test("an edited message keeps the old one and what was said after it", () => {
  const talk = said("a", "b", "c", "d");
  talk.retry(talk.turns[2]);
  talk.say("C");
  assert.deepEqual(texts(talk), ["a", "b", "C"]);
  assert.deepEqual(talk.version(talk.turns[2]), { at: 2, of: 2 });
  talk.choose(talk.turns[2], -1);
  assert.deepEqual(texts(talk), ["a", "b", "c", "d"]);
  talk.choose(talk.turns[2], -1);
  assert.deepEqual(talk.version(talk.turns[2]), { at: 1, of: 2 });
  talk.retry(talk.turns[0]);
  talk.say("A");
  assert.deepEqual(texts(talk), ["A"], "the first message has versions, too");
});

test("a turn that is removed lets the rest move up, in every version", () => {
  const talk = said("a", "b", "c", "d");
  talk.retry(talk.turns[2]);
  talk.say("C");
  talk.remove(talk.turns[1]);
  assert.deepEqual(texts(talk), ["a", "C"]);
  talk.choose(talk.turns[1], -1);
  assert.deepEqual(texts(talk), ["a", "c", "d"]);
  talk.remove(talk.turns[2]);
  talk.remove(talk.turns[0]);
  assert.deepEqual(texts(talk), ["c"]);
  talk.remove(talk.turns[0]);
  assert.deepEqual(texts(talk), ["C"], "the other version is left");
});

test("results go with the answer whose calls they answer", () => {
  const talk = new Conversation();
  talk.say("weather?");
  const calls = [0, 1].map((index) => ({ index, id: `c${index}`, function: { name: "f", arguments: "{}" } }));
  talk.begin(0).take(chunk({ tool_calls: calls }), 1);
  talk.give(["sunny", "rain"]);
  talk.begin(0).take(chunk({ content: "done" }), 1);
  talk.remove(talk.turns[1]);
  assert.deepEqual(texts(talk), ["weather?", "done"]);
});

test("a branch has the turns up to one, and shares nothing with the rest", () => {
  const talk = said("a", "b", "c", "d");
  const branch = talk.branch(talk.turns[1]);
  branch.say("x");
  assert.deepEqual(texts(branch), ["a", "b", "x"]);
  assert.deepEqual(texts(talk), ["a", "b", "c", "d"]);
});

test("turns that are left out are kept, and not sent", () => {
  const talk = said("a", "b", "c", "d", "e");
  assert.deepEqual(talk.cuts, [2, 4]);
  talk.left = 2;
  assert.deepEqual(talk.messages("S").map((each) => each.content), ["S", "c", "d", "e"]);
  assert.deepEqual(texts(talk), ["a", "b", "c", "d", "e"]);
});

test("a request for the rest of an answer says so", () => {
  const body = /** @type {any} */ (said("a", "b").request("m", PLAIN, true));
  assert.deepEqual([body.continue_final_message, body.add_generation_prompt], [true, false]);
  assert.equal(body.messages.at(-1).content, "b");
});

test("what is saved comes back with every version, after any deeds", () => {
  let seed = 7;
  /** @param {number} below */
  const random = (below) => (seed = (seed * 48271) % 2147483647) % below;
  for (let story = 0; story < 200; story++) {
    const talk = new Conversation();
    for (let deed = 0; deed < 25; deed++) {
      const { turns } = talk;
      const turn = turns[random(turns.length || 1)];
      const kind = random(7);
      if (kind < 2 || !turn) talk.say(`u${deed}`);
      else if (kind < 4) talk.begin(0).take(chunk({ content: `a${deed}` }), 1);
      else if (kind === 4) talk.remove(turn);
      else if (kind === 5) talk.choose(turn, random(3) - 1);
      else talk.retry(turn);
      const again = Conversation.of(JSON.parse(JSON.stringify(talk.saved)), talk.left);
      assert.deepEqual(texts(again), texts(talk));
      assert.deepEqual(again.saved, talk.saved);
    }
  }
});
