/** Rates are differences of totals by the time between them; a model that was loaded anew has none. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { CellFigures } from "./page/cell_figures.js";
import { pathOf, roundedUp } from "./page/chart.js";

/** @param {number} atS @param {Record<string, number>} activity @returns {any} */
function cell(atS, activity) {
  const idle = { slots: 4, slots_used: 0, pages: 100, pages_used: 0, prompt_tokens: 0, cached_tokens: 0, generated_tokens: 0, answers_begun: 0, first_token_s: 0, answers_timed: 0, token_interval_s: 0 };
  const held = { model: "/sax/test/m", running: 2, queued: 1, activity: { ...idle, ...activity } };
  return { seen_at_s: atS, models: [], servers: [{ address: "a:1", servables: [held] }] };
}

test("a first look has counts and no rates", () => {
  const figures = new CellFigures();
  figures.push(cell(10, { generated_tokens: 50, pages_used: 25 }));
  const [one] = figures.samples;
  assert.deepEqual([one.running, one.queued, one.kv, one.generated], [2, 1, 0.25, NaN]);
});

test("rates and means are those of what was added", () => {
  const figures = new CellFigures();
  figures.push(cell(10, { generated_tokens: 50, answers_begun: 3, first_token_s: 9 }));
  figures.push(cell(12, { generated_tokens: 90, prompt_tokens: 10, answers_begun: 5, first_token_s: 9.5, answers_timed: 1, token_interval_s: 0.02 }));
  const last = figures.samples[1];
  assert.deepEqual([last.generated, last.prompt, last.firstTokenS, last.intervalS], [20, 5, 0.25, 0.02]);
  assert.equal(figures.rateOf("a:1", "/sax/test/m"), 20);
  assert.ok(Number.isNaN(figures.rateOf("a:1", "/sax/test/other") || NaN));
});

test("a look that is not newer adds nothing, and the window is a few seconds", () => {
  const figures = new CellFigures();
  for (const atS of [0, 2, 2, 4, 6, 8]) figures.push(cell(atS, { generated_tokens: atS < 4 ? 0 : 60 }));
  assert.equal(figures.samples.length, 5);
  assert.equal(figures.samples.at(-1)?.generated, 10);
});

test("totals that fell are of a model that was loaded anew", () => {
  const figures = new CellFigures();
  figures.push(cell(0, { generated_tokens: 500 }));
  figures.push(cell(2, { generated_tokens: 4 }));
  assert.equal(figures.samples[1].generated, 0);
});

test("samples are kept for five minutes", () => {
  const figures = new CellFigures();
  for (let atS = 0; atS <= 400; atS += 2) figures.push(cell(atS, {}));
  assert.equal(figures.samples[0].atS, 100);
});

test("a chart's scale is round, and its line breaks where nothing is known", () => {
  assert.deepEqual([0, 0.3, 1, 3, 7, 130].map(roundedUp), [1, 0.5, 1, 5, 10, 200]);
  assert.equal(pathOf([[0, 1], [2, 3], [4, NaN], [6, 5]]), "M0.0 1.0h0.1L2.0 3.0M6.0 5.0h0.1");
});
