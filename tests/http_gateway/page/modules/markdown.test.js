/** Markdown: what models write becomes branches; all else stays text. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { blocks } from "./page/markdown.js";

/** @param {any} part @returns {any} a branch as [tag, ...children] */
const brief = (part) => (typeof part === "string" ? part : [part.tag, ...part.children.map(brief)]);
/** @param {string} text @returns {any[]} */
const read = (text) => blocks(text).map(({ block }) => block);
/** @param {string} text */
const told = (text) => read(text).map(brief);

test("a line end within a paragraph is kept", () => {
  assert.deepEqual(told("one\ntwo\n\nthree"), [["p", "one", ["br"], "two"], ["p", "three"]]);
});

test("fenced code keeps its text and its language, closed or not", () => {
  const [code] = read("```python title=x\nx = *1*\n\n<b>\n```\nafter");
  assert.deepEqual([code.tag, code.lang, code.children], ["pre", "python", ["x = *1*\n\n<b>"]]);
  assert.deepEqual(told("~~~\nopen"), [["pre", "open"]]);
});

test("headings of both kinds, rules, quotes and entities", () => {
  assert.deepEqual(told("Two *x*\n---\n***\n> said\n> **so** &amp; ~~no~~"), [
    ["h2", "Two ", ["em", "x"]],
    ["hr"],
    ["blockquote", ["p", "said", ["br"], ["strong", "so"], " & ", ["del", "no"]]],
  ]);
});

test("lists nest, begin where they begin, and have tasks", () => {
  assert.deepEqual(told("- a\n  - b\n- c"), [["ul", ["li", "a", ["ul", ["li", "b"]]], ["li", "c"]]]);
  assert.equal(read("3. x\n4. y")[0].start, 3);
  const [tasks] = read("- [ ] x\n- [X] y\n- [z] no\n\n- [x] loose");
  assert.deepEqual(tasks.children.map((/** @type {any} */ item) => item.checked), [false, true, undefined, true]);
  assert.deepEqual(brief(tasks.children[0]), ["li", ["p", "x"]]);
});

test("tables have a head, alignment, and as many cells in each row", () => {
  const [table] = read("| a | b |\n|---|:-:|\n| 1 |");
  assert.deepEqual(brief(table), ["table", ["thead", ["tr", ["th", "a"], ["th", "b"]]], ["tbody", ["tr", ["td", "1"], ["td"]]]]);
  assert.equal(table.children[0].children[0].children[1].align, "center");
});

test("bare links are links, and names of files are not", () => {
  assert.deepEqual(told("See https://x.test/y. And readme.md"), [["p", "See ", ["a", "https://x.test/y"], ". And readme.md"]]);
  const [{ children: [link] }] = read("[x](https://a.test/y?z=1)");
  assert.deepEqual([link.tag, link.href, link.children], ["a", "https://a.test/y?z=1", ["x"]]);
});

test("formulas in each way of writing, and money is none", () => {
  assert.deepEqual(told("It costs $5 and $6, or US$7. $x^2$, \\(y\\)"), [["p", "It costs $5 and $6, or US$7. ", ["math", "x^2"], ", ", ["math", "y"]]]);
  for (const text of ["$$\na\n+ b\n$$", "\\[\na\n+ b\n\\]", "\\[ a\n+ b \\]"]) {
    const [formula, ...more] = read(`${text}\nafter`);
    assert.deepEqual([formula.tag, formula.display, formula.children[0].replace(/\s+/g, " ")], ["math", true, "a + b"]);
    assert.deepEqual(more.map(brief), [["p", "after"]]);
  }
  assert.deepEqual(told("`$x$` and $ x $ and \\$y\\$"), [["p", ["code", "$x$"], " and $ x $ and $y$"]]);
  assert.deepEqual(told("$$ never closed"), [["p", "$$ never closed"]]);
});

test("HTML and links of other schemes stay text", () => {
  const hostile = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JAVASCRIPT:alert(1))",
    "[x](data:text/html,<script>)",
    "[x](//evil.test)",
    "![x](javascript:alert(1))",
  ];
  for (const text of hostile) assert.deepEqual(told(text), [["p", text]], text);
  assert.deepEqual(told("&lt;b&gt; <javascript:alert(1)>"), [["p", "<b> <javascript:alert(1)>"]]);
});

test("a text read from any of its blocks on is read as in the whole", () => {
  const text = "# A\n\ntext\n\n- a\n\n  more\n- b\n\n> q\n\n```js\nx\n\ny\n```\n| a |\n|---|\n| 1 |\n\n$$\nz\n$$\nend\n";
  const whole = blocks(text);
  const lines = text.split("\n");
  for (const [at, { line }] of whole.entries()) {
    const rest = blocks(lines.slice(line).join("\n"));
    assert.deepEqual(rest.map(({ block }) => block), whole.slice(at).map(({ block }) => block), `from line ${line}`);
  }
});

test("deep nesting and long runs end soon", () => {
  const long = [">".repeat(20_000), "- ".repeat(5_000), "*".repeat(20_000), "`".repeat(20_000), "[".repeat(20_000), "**a ".repeat(3_000), "$a ".repeat(20_000), "$$\n".repeat(9_000), "\\[".repeat(20_000)];
  for (const text of long) assert.ok(blocks(text).length > 0);
});
