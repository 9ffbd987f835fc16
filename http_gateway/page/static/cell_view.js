/** The cell as it is now: figures, charts, models and servers. */

import { CellFigures, totalsOf } from "./cell_figures.js";
import { Chart } from "./chart.js";
import { found, make, tell } from "./element.js";
import { bytes, duration, figure, percent } from "./quantity.js";
import { Rows } from "./rows.js";

/** @import { Cell, Model, Progress, Replica, Sample, Servable, Server } from "./cell_figures.js" */

/** @type {[string, string[], (value: number) => string, (sample: Sample) => number[]][]} */
const CHARTS = [
  ["Tokens per second", ["generated", "prompts"], figure, (one) => [one.generated, one.prompt]],
  ["Requests", ["running", "queued"], figure, (one) => [one.running, one.queued]],
  ["KV pages in use", ["used"], percent, (one) => [one.kv]],
  ["Latency", ["first token", "next tokens"], duration, (one) => [one.firstTokenS, one.intervalS]],
];

export class CellView {
  #figures = new CellFigures();

  /** @param {{ unpublish: (model: string) => void }} on */
  constructor(on) {
    this.on = on;
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
      row: serverNode,
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
    if (!this.cell || this.view.hidden) return;
    const cell = this.cell;
    tell(this.trouble, cell.admin === "ok" ? "" : `As it was at ${new Date(cell.seen_at_s * 1000).toLocaleTimeString()}: ${cell.admin}`);
    this.publishing.hidden = cell.may_publish === false;
    this.#showTiles(cell);
    this.charts.forEach((chart, index) => {
      const read = CHARTS[index][3];
      chart.show(this.#figures.samples.map((one) => ({ atS: one.atS, values: read(one) })));
    });
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
    /** @type {[string, string][]} */
    const tiles = [
      [`${whole} of ${cell.models.length}`, "models ready"],
      [`${sum((one) => one.ready_replicas)} of ${sum((one) => one.wanted_replicas)}`, "replicas ready"],
      [String(cell.servers.length), cell.servers.length === 1 ? "model server" : "model servers"],
      [figure(totals.running), "requests running"],
      [figure(totals.queued), "requests queued"],
      [percent(totals.pages ? totals.pagesUsed / totals.pages : NaN), "KV pages in use"],
      [figure(last ? last.generated : NaN), "tokens/s"],
    ];
    this.tiles.replaceChildren(...tiles.map(([number, name]) => make("li", {}, make("b", {}, number), make("span", { class: "dim" }, name))));
  }

  /** @param {Model} one */
  #model(one) {
    const button = make("button", { type: "button", class: "danger", "aria-label": `Unpublish ${one.model}` }, "Unpublish");
    button.addEventListener("click", () => this.on.unpublish(one.model));
    const whole = one.ready_replicas >= one.wanted_replicas;
    const ready = [
      make("span", { class: whole ? "good" : "busy" }, `${one.ready_replicas} of ${one.wanted_replicas}`),
      one.scaling_reason && make("div", { class: "dim" }, one.scaling_reason),
    ];
    const replicas = one.replicas.map(replicaNode);
    const hidden = one.replicas_hidden && make("div", { class: "dim" }, `and ${one.replicas_hidden} more`);
    return make("tr", {},
      make("td", {}, make("b", {}, one.model)),
      make("td", {}, make("code", {}, one.model_path), make("div", { class: "dim" }, one.checkpoint)),
      make("td", {}, ready),
      make("td", {}, [...replicas, hidden || null]),
      make("td", {}, one.may_change !== false && button));
  }

  /**
   * What the table shows of a server: without the figures that always change and say nothing.
   * @param {Server} server
   */
  serverRow({ seen_s_ago: seenS, ...rest }) {
    const rates = rest.servables.map((one) => figure(this.#figures.rateOf(rest.address, one.model)));
    return { ...rest, silentS: seenS < 4 ? 0 : Math.round(seenS), rates };
  }
}

/** @param {Replica} one */
function replicaNode(one) {
  return make("div", { class: "replica" },
    make("span", { class: one.status }, one.status), " ",
    make("code", {}, one.address || "no server"), " ",
    one.status === "loading" && bar(one.progress),
    (one.reason || one.note) && make("div", { class: "dim" }, one.reason || one.note));
}

/** @param {Progress | null} progress */
function bar(progress) {
  const label = progress ? `${progress.phase} ${progress.done} of ${progress.total} ${progress.unit}`.trim() : "loading";
  /** @type {Record<string, string>} */
  const known = progress?.total ? { max: String(progress.total), value: String(progress.done) } : {};
  return make("progress", { "aria-label": label, title: label, ...known });
}

/** @param {ReturnType<CellView["serverRow"]>} one */
function serverNode(one) {
  const total = one.memory_total;
  const memory = [
    total > 0 && make("meter", { min: "0", max: String(total), value: String(one.memory_used), "aria-label": "Memory used" }),
    make("div", { class: "dim" }, total ? `${bytes(one.memory_used)} of ${bytes(total)}` : bytes(one.memory_used)),
  ];
  const requests = one.successes_per_second || one.errors_per_second
    ? `${figure(one.successes_per_second)} requests/s, ${duration(one.mean_latency_s)} each`
    : "no requests";
  return make("tr", {},
    make("td", {},
      make("code", {}, one.address),
      make("div", { class: "dim" }, `${one.chip_type} ${one.chip_topology}`),
      one.silentS > 0 && make("div", { class: "trouble" }, `silent for ${one.silentS} s`),
      one.tags.map((tag) => make("span", { class: "tag" }, tag))),
    make("td", {}, memory),
    make("td", {}, one.dormant ? "dormant" : requests,
      one.errors_per_second > 0 && make("div", { class: "trouble" }, `${figure(one.errors_per_second)} errors/s`)),
    make("td", {}, one.servables.map((held, index) => servableNode(held, one.rates[index]))));
}

/** @param {Servable} one @param {string} rate */
function servableNode(one, rate) {
  const { activity } = one;
  const share = activity.pages ? activity.pages_used / activity.pages : NaN;
  const kv = activity.pages > 0 && make("div", { class: "kv" },
    make("meter", { min: "0", max: "1", value: String(share), "aria-label": `KV pages of ${one.model} in use` }),
    `${percent(share)} of KV pages`);
  const figures = [
    `${one.running} running`,
    `${one.queued} queued`,
    activity.slots > 0 && `${activity.slots} slots`,
    rate !== "–" && `${rate} tokens/s`,
  ].filter(Boolean).join(", ");
  return make("div", { class: "servable" },
    make("span", { class: one.status }, one.status), ` ${one.model} `,
    one.memory > 0 && make("span", { class: "dim" }, bytes(one.memory)),
    one.status === "loading" && bar(one.progress),
    one.status === "loaded" && make("div", { class: "dim" }, figures),
    kv,
    one.reason && make("div", { class: "dim" }, one.reason));
}
