/** An answer adds up its events; a conversation asks for the next one with all that was said. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Answer } from "./page/answer.js";
import { Conversation } from "./page/conversation.js";

const PLAIN = { system: "", sampling: {}, tools: [], toolChoice: "auto", probabilities: false };
/** @param {object} delta @param {object} [more] */
const chunk = (delta, more = {}) => ({ choices: [{ delta, ...more }] });

test("texts, reasoning and times add up", () => {
  const answer = new Answer(1000);
  answer.take(chunk({ role: "assistant", content: "" }), 1100);
  assert.equal(answer.firstTokenS, null);
  answer.take(chunk({ reasoning_content: "hm", reasoning: "hm" }), 1500);
  answer.take({ ...chunk({ content: "a" }), usage: { prompt_tokens: 9, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 4 } } }, 2000);
  answer.take({ ...chunk({ content: "b" }, { finish_reason: "stop" }), usage: { prompt_tokens: 9, completion_tokens: 5 } }, 2500);
  answer.take({ choices: [], usage: { prompt_tokens: 9, completion_tokens: 5 } }, 9000);
  assert.deepEqual([answer.content, answer.reasoning, answer.finish], ["ab", "hm", "stop"]);
  assert.equal(answer.firstTokenS, 0.5);
  assert.equal(answer.tokensPerS, 4);
});

test("calls come in pieces, each at its index", () => {
  const answer = new Answer(0);
  answer.take(chunk({ tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "f", arguments: "" } }] }), 1);
  answer.take(chunk({ tool_calls: [{ index: 0, function: { arguments: '{"a"' } }] }), 2);
  answer.take(chunk({ tool_calls: [{ index: 1, id: "call_2", function: { name: "g", arguments: "{}" } }, { index: 0, function: { arguments: ":1}" } }] }), 3);
  assert.deepEqual(answer.calls, [
    { id: "call_1", name: "f", arguments: '{"a":1}' },
    { id: "call_2", name: "g", arguments: "{}" },
  ]);
});

test("tokens keep their rivals, and an error is its message", () => {
  const answer = new Answer(0);
  const top = [{ token: "a", logprob: -0.1 }];
  answer.take(chunk({ content: "a" }, { logprobs: { content: [{ token: "a", logprob: -0.1, top_logprobs: top }] } }), 1);
  answer.take({ error: { message: "the replica is lost" } }, 2);
  assert.deepEqual(answer.tokens, [{ token: "a", logprob: -0.1, top }]);
  assert.equal(answer.error, "the replica is lost");
});

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
  assert.ok(!("tools" in body));
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

test("an answer that never began is not sent, and can be taken back", () => {
  const talk = new Conversation();
  talk.say("hi");
  talk.begin(0).take({ error: { message: "no" } }, 1);
  assert.equal(/** @type {any} */ (talk.request("m", PLAIN)).messages.length, 1);
  talk.takeBack();
  assert.equal(talk.turns.length, 1);
});
