/** A request is told as curl and as Python, whatever its texts. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { asCurl, asPython } from "./page/shared_request.js";

const BODY = { model: "/sax/test/m", messages: [{ role: "user", content: "It's \"so\"\n" }], stream: true, top_k: 4, stop: null, tools: [] };

test("curl gets the body with its quotes", () => {
  const text = asCurl("http://127.0.0.1:8888", BODY, false);
  const json = text.slice(text.indexOf("-d '") + 4, text.lastIndexOf("'")).replaceAll("'\\''", "'");
  assert.deepEqual(JSON.parse(json), BODY);
  assert.ok(!text.includes("authorization"));
  assert.ok(asCurl("http://h", BODY, true).includes('"authorization: Bearer $SAX_API_KEY"'), "a key is never written out");
});

test("Python gets what the client does not name in extra_body", () => {
  const text = asPython("http://h:1", BODY, true);
  assert.ok(text.includes('base_url="http://h:1/v1", api_key=os.environ["SAX_API_KEY"]'));
  assert.ok(text.includes('"content": "It\'s \\"so\\"\\n",'));
  assert.ok(text.includes("    stream=True,\n    stop=None,\n    tools=[],\n    extra_body={\n        \"top_k\": 4,\n    },\n"));
});
