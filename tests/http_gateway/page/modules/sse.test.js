/** Server-sent events are the same however the stream is cut. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { EventReader } from "./page/sse.js";

const STREAM = ': hello\n\ndata: {"a": 1}\n\nevent: x\r\ndata: one\r\ndata: two\r\n\r\nid: 3\ndata:tight\r\rdata: [DONE]\n\n';
const EVENTS = ['{"a": 1}', "one\ntwo", "tight", "[DONE]"];

test("events are read whole", () => {
  assert.deepEqual(new EventReader().push(STREAM), EVENTS);
});

test("every cut in two and every size of piece gives the same", () => {
  for (let cut = 0; cut <= STREAM.length; cut++) {
    const reader = new EventReader();
    assert.deepEqual([...reader.push(STREAM.slice(0, cut)), ...reader.push(STREAM.slice(cut))], EVENTS, `cut ${cut}`);
  }
  for (let size = 1; size < 9; size++) {
    const reader = new EventReader();
    const pieces = STREAM.match(new RegExp(`[^]{1,${size}}`, "g")) ?? [];
    assert.deepEqual(pieces.flatMap((piece) => reader.push(piece)), EVENTS, `pieces of ${size}`);
  }
});

test("an event that is not complete is not told", () => {
  assert.deepEqual(new EventReader().push("data: x\n"), []);
});
