/** Markdown: what models write becomes branches; all else stays text. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { blocks, inline } from "./page/markdown.js";

/** @param {any} part @returns {any} a branch as [tag, ...children] */
const brief = (part) => (typeof part === "string" ? part : [part.tag, ...part.children.map(brief)]);
/** @param {string} text */
const told = (text) => blocks(text).map(brief);

test("paragraphs end at empty lines, and a line end within one is kept", () => {
  assert.deepEqual(told("one\ntwo\n\nthree"), [["p", "one", ["br"], "two"], ["p", "three"]]);
});

test("fenced code keeps its text and its language, closed or not", () => {
  const [code] = blocks("```python\nx = *1*\n\n<b>\n```\nafter");
  assert.deepEqual([code.tag, code.lang, code.children], ["pre", "python", ["x = *1*\n\n<b>"]]);
  assert.deepEqual(told("~~~\nopen"), [["pre", "open"]]);
  assert.deepEqual(told("````\n```\n````"), [["pre", "```"]]);
});

test("headings, rules and quotes", () => {
  assert.deepEqual(told("## Two *x* ##\n---\n> said\n> **so**"), [
    ["h2", "Two ", ["em", "x"]],
    ["hr"],
    ["blockquote", ["p", "said", ["br"], ["strong", "so"]]],
  ]);
  assert.deepEqual(told("#no"), [["p", "#no"]]);
});

test("lists nest, and an ordered one begins where it begins", () => {
  assert.deepEqual(told("- a\n  - b\n- c"), [["ul", ["li", "a", ["ul", ["li", "b"]]], ["li", "c"]]]);
  const [list] = blocks("3. x\n4. y");
  assert.deepEqual([list.tag, list.start, list.children.length], ["ol", 3, 2]);
});

test("tables have a head and as many cells in each row", () => {
  assert.deepEqual(told("| a | b |\n|---|:-:|\n| 1 |"), [
    ["table", ["tr", ["th", "a"], ["th", "b"]], ["tr", ["td", "1"], ["td"]]],
  ]);
});

test("emphasis, code and links within a line", () => {
  assert.deepEqual(inline("a **b *c*** `d*e*` _f_").map(brief).slice(0, 2), ["a ", ["strong", "b ", ["em", "c"]]]);
  assert.deepEqual(inline("``a ` b``").map(brief), [["code", "a ` b"]]);
  assert.deepEqual(inline("snake_case_name 2 * 3 * 4"), ["snake_case_name 2 * 3 * 4"]);
  const [link] = /** @type {any[]} */ (inline("[x](https://a.test/y?z=1)"));
  assert.deepEqual([link.tag, link.href, link.children], ["a", "https://a.test/y?z=1", ["x"]]);
});

test("HTML and links of other schemes stay text", () => {
  const hostile = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JAVASCRIPT:alert(1))",
    "[x](data:text/html,<script>)",
    "[x](//evil.test)",
    "&lt;b&gt;",
  ];
  for (const text of hostile) assert.deepEqual(told(text), [["p", text]], text);
});

test("nothing is lost or invented, whatever the text is", () => {
  const letters = "ab *_`#>-1.|[]()~\n\t<&\\".split("");
  let seed = 1;
  const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  for (let round = 0; round < 3000; round++) {
    const text = Array.from({ length: 1 + random() * 60 }, () => letters[Math.floor(random() * letters.length)]).join("");
    const words = (/** @type {any} */ part) => (typeof part === "string" ? part : part.children.map(words).join(""));
    const kept = blocks(text).map(words).join("").replace(/[^ab]/g, "");
    const lang = blocks(text).flatMap(function all(/** @type {any} */ part) {
      return typeof part === "string" ? [] : [part.lang ?? "", ...part.children.flatMap(all)];
    });
    assert.ok(kept.length + lang.join("").length <= text.length);
    if (!/[`~[|]/.test(text)) assert.equal(kept, text.replace(/[^ab]/g, ""), JSON.stringify(text));
  }
});

test("deep nesting and long runs end soon", () => {
  for (const text of [">".repeat(20_000), "- ".repeat(5_000), "*".repeat(20_000), "`".repeat(20_000), "[".repeat(20_000), `${"**a ".repeat(3_000)}`]) {
    assert.ok(blocks(text).length > 0);
  }
});
