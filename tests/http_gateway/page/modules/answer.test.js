/** An answer adds up its events. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Answer } from "./page/answer.js";

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

test("reasoning that nobody marked is told apart from the text", () => {
  const parts = (/** @type {string} */ content, /** @type {string} */ reasoning = "") => {
    const answer = new Answer(0);
    answer.take(chunk({ content, reasoning_content: reasoning }), 1);
    return answer.parts;
  };
  assert.deepEqual(parts("\n<think>two\nand two</think>\n\nFour."), { reasoning: "two\nand two", text: "Four." });
  assert.deepEqual(parts("<think>two"), { reasoning: "two", text: "" });
  assert.deepEqual(parts("Say <think>x</think>"), { reasoning: "", text: "Say <think>x</think>" });
  assert.deepEqual(parts("<think>x</think>", "hm"), { reasoning: "hm", text: "<think>x</think>" });
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

test("an answer goes on after its end, and is kept without probabilities", () => {
  const answer = new Answer(0);
  answer.take({ ...chunk({ content: "one" }, { finish_reason: "length" }), usage: { prompt_tokens: 3, completion_tokens: 4 } }, 1);
  answer.goOn(5000);
  assert.deepEqual([answer.finish, answer.usage, answer.isEmpty], ["", null, false]);
  answer.take(chunk({ content: " two" }, { finish_reason: "stop" }), 6000);
  assert.deepEqual([answer.content, answer.firstTokenS], ["one two", 1]);
  const again = Answer.of(JSON.parse(JSON.stringify(answer.saved)));
  assert.deepEqual(again.message, answer.message);
  assert.deepEqual([again.finish, again.tokens], ["stop", []]);
});
