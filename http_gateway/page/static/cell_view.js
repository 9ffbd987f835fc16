/** The cell as it is now: figures, charts, models and servers. */

import { CellFigures, totalsOf } from "./cell_figures.js";
import { Chart } from "./chart.js";
import { modelRow, serverRow, steady, tiles } from "./cell_rows.js";
import { found, make, tell } from "./element.js";
import { OperatorView } from "./operator_view.js";
import { duration, figure, percent } from "./quantity.js";
import { Rows } from "./rows.js";

/** @import { Cell, Model, Sample, Server } from "./cell_figures.js" */

/** @type {[string, string[], (value: number) => string, (sample: Sample) => number[]][]} */
const CHARTS = [
  ["Tokens per second", ["generated", "prompts"], figure, (one) => [one.generated, one.prompt]],
  ["Requests", ["running", "queued"], figure, (one) => [one.running, one.queued]],
  ["KV pages in use", ["used"], percent, (one) => [one.kv]],
  ["Latency", ["first token", "next tokens"], duration, (one) => [one.firstTokenS, one.intervalS]],
];

export class CellView {
  #figures = new CellFigures();

  /** @param {{ unpublish: (model: string) => void, versions: (model: string, mayChange: boolean) => void }} on */
  constructor(on) {
    this.on = on;
    this.operators = new OperatorView();
    this.view = found("view-cell", HTMLElement);
    this.tiles = found("tiles", HTMLElement);
    this.trouble = found("cell-trouble", HTMLElement);
    this.filter = found("cell-filter", HTMLInputElement);
    this.filter.addEventListener("input", () => this.draw());
    this.publishing = found("publish-open", HTMLButtonElement);
    this.charts = CHARTS.map(([title, names, format]) => new Chart(title, names, format));
    found("charts", HTMLElement).append(...this.charts.map((chart) => chart.node));
    this.models = new Rows(found("models", HTMLElement), {
      key: (/** @type {Model} */ one) => one.model,
      row: (/** @type {Model} */ one) => this.#model(one),
      nothing: "No model is published.",
    });
    this.servers = new Rows(found("servers", HTMLElement), {
      key: (/** @type {ReturnType<CellView["serverRow"]>} */ one) => one.address,
      row: serverRow,
      nothing: "No model server has joined.",
    });
  }

  /** @param {Cell} cell */
  take(cell) {
    this.#figures.push(cell);
    this.cell = cell;
    this.draw();
  }

  /** Show what is known, if it can be seen. */
  draw() {
    this.operators.shown = !this.view.hidden;
    if (!this.cell || this.view.hidden) return;
    const cell = this.cell;
    tell(this.trouble, cell.admin === "ok" ? "" : `As it was at ${new Date(cell.seen_at_s * 1000).toLocaleTimeString()}: ${cell.admin}`);
    this.publishing.hidden = cell.may_publish === false;
    this.#showTiles(cell);
    this.charts.forEach((chart, index) => {
      const read = CHARTS[index][3];
      chart.show(this.#figures.samples.map((one) => ({ atS: one.atS, values: read(one) })));
    });
    this.operators.servers = cell.servers.map(({ address }) => address);
    const nothing = this.filter.value.trim() ? "Nothing has these words." : undefined;
    this.models.show(cell.models.filter((one) => this.#passes(one)), nothing);
    this.servers.show(cell.servers.filter((one) => this.#passes(one)).map((one) => this.serverRow(one)), nothing);
  }

  /** True for what has every word of the filter in a name, state, reason or tag. @param {object} one */
  #passes(one) {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = words.length ? JSON.stringify(Object.values(one)).toLowerCase() : "";
    return words.every((word) => text.includes(word));
  }

  /** @param {Cell} cell */
  #showTiles(cell) {
    const totals = totalsOf(cell);
    const sum = (/** @type {(model: Model) => number} */ read) => cell.models.reduce((all, one) => all + read(one), 0);
    const whole = cell.models.filter((one) => one.ready_replicas >= one.wanted_replicas).length;
    const last = this.#figures.samples.at(-1);
    this.tiles.replaceChildren(...tiles([
      [`${whole} of ${cell.models.length}`, "models ready"],
      [`${sum((one) => one.ready_replicas)} of ${sum((one) => one.wanted_replicas)}`, "replicas ready"],
      [String(cell.servers.length), cell.servers.length === 1 ? "model server" : "model servers"],
      [figure(totals.running), "requests running"],
      [figure(totals.queued), "requests queued"],
      [percent(totals.pages ? totals.pagesUsed / totals.pages : NaN), "KV pages in use"],
      [figure(last ? last.generated : NaN), "tokens/s"],
    ]));
  }

  /** @param {Model} one */
  #model(one) {
    const { model, may_change: may } = one;
    /** @param {string} text @param {string} kind @param {() => void} does */
    const button = (text, kind, does) => {
      const node = make("button", { type: "button", class: kind, "aria-label": `${text} ${model}` }, text);
      node.addEventListener("click", does);
      return node;
    };
    const versions = button("Versions", "", () => this.on.versions(model, may !== false));
    return modelRow(one, may === false ? [versions] : [versions, button("Unpublish", "danger", () => this.on.unpublish(model))]);
  }

  /** @param {Server} server */
  serverRow(server) {
    return { ...steady(server), rates: server.servables.map((one) => figure(this.#figures.rateOf(server.address, one.model))) };
  }
}
