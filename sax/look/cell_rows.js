/**
 * Draws the rows of a cell on the gateway's page and the admin server's: models, replicas, servers,
 * changes. Their values are those of `cell_rows.py`; the admin server's have more.
 *
 * @typedef {object} Activity
 * @property {number} slots
 * @property {number} slots_used
 * @property {number} pages
 * @property {number} pages_used
 * @property {number} prompt_tokens
 * @property {number} cached_tokens
 * @property {number} generated_tokens
 * @property {number} answers_begun
 * @property {number} first_token_s
 * @property {number} answers_timed
 * @property {number} token_interval_s
 *
 * @typedef {{ phase: string, done: number, total: number, unit: string }} Progress
 * @typedef {{ weights: number, kv: number, state: number, workspace: number, slots: number, context: number }} MemoryParts
 * @typedef {{ model: string, status: string, reason: string, memory: number, memory_parts?: MemoryParts | null, kernels: string, queued: number, running: number, arrived: number, progress: Progress | null, activity: Activity }} Servable
 * @typedef {{ address: string, debug_address?: string, trouble?: string, chip_type: string, chip_topology: string, devices: number, tags: string[], memory_used: number, memory_total: number, seen_s_ago: number, dormant: boolean, pending_requests: number, successes_per_second: number, errors_per_second: number, mean_latency_s: number, servables: Servable[], servables_hidden?: number }} Server
 * @typedef {{ address: string, status: string, reason: string, note: string, canary: boolean, progress: Progress | null }} Replica
 * @typedef {{ version: string, checkpoint: string, percent: number, ready_replicas: number }} Canary
 * @typedef {{ min_replicas: number, max_replicas: number, target_queue: number }} Autoscaling
 * @typedef {{ tags: string[], devices: number, memory: number }} Placement
 * @typedef {{ model: string, model_path: string, checkpoint: string, base: string, version: string, revision?: number, overrides?: Record<string, string>, warnings?: string[], placement?: Placement, autoscaling?: Autoscaling | null, methods: string[], wanted_replicas: number, ready_replicas: number, scaling_reason: string, canary: Canary | null, may_change: boolean | null, replicas: Replica[], replicas_hidden: number }} Model
 * @typedef {{ sequence: number, at_s: number, kind: string, model_id: string, by: string, text: string }} Change
 * @typedef {import("./element.js").Child} Child
 */

import { make } from "./element.js";
import { bytes, duration, figure, percent } from "./quantity.js";

const SILENT_S = 4;

/** @param {string} kind @param {...(Child | Child[])} children */
function line(kind, ...children) {
  return make("div", { class: kind }, ...children);
}

/** A row of a table. @param {...(Child | Child[])} cells */
export function row(...cells) {
  return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
}

/** Figures with their names, as the page begins. @param {[string, string][]} list */
export function tiles(list) {
  return list.map(([number, name]) => make("li", {}, make("b", {}, number), make("span", { class: "dim" }, name)));
}

/** @param {number} seconds of the epoch */
export function when(seconds) {
  const date = new Date(seconds * 1000);
  return make("time", { class: "tight", datetime: date.toISOString() }, date.toLocaleString());
}

/** @param {number} count @param {string} things */
function hidden(count, things) {
  return count > 0 && line("dim", `and ${count} more ${things}`);
}

/** @param {Model} one @param {HTMLElement[] | null} [actions] null: the table has no place for any */
export function modelRow(one, actions = null) {
  const cells = [
    [make("b", {}, one.model), one.base && line("dim", `adapter of ${one.base}`)],
    [make("code", {}, one.model_path), line("dim", one.checkpoint), ...settings(one)],
    ready(one),
    [...one.replicas.map(replica), hidden(one.replicas_hidden, "replicas")],
  ];
  return actions ? row(...cells, line("row-actions", actions)) : row(...cells);
}

/** @param {Model} one */
function settings({ version, revision, overrides = {}, placement, warnings = [] }) {
  const given = Object.entries(overrides).map(([key, value]) => `${key}=${value}`).join(" ");
  const place = placement && placeOf(placement);
  return [
    given && line("dim", given),
    place && line("dim", `on ${place}`),
    version && line("dim", "version ", make("code", {}, version.slice(0, 8)), revision ? `, revision ${revision}` : ""),
    ...warnings.map((text) => line("busy", text)),
  ];
}

/** @param {Placement} place */
function placeOf({ tags, devices, memory }) {
  const parts = tags.map((tag) => `tag ${tag}`);
  return [...parts, devices && `${devices} devices`, memory && bytes(memory)].filter(Boolean).join(", ");
}

/** @param {Model} one */
function ready({ ready_replicas: count, wanted_replicas: wanted, autoscaling, scaling_reason: reason, canary }) {
  return [
    make("span", { class: count >= wanted ? "good" : "busy" }, `${count} of ${wanted}`),
    autoscaling && line("dim", `${autoscaling.min_replicas} to ${autoscaling.max_replicas} replicas, ${autoscaling.target_queue} waiting each`),
    reason && line("dim", reason),
    canary && line("dim", `canary: ${canary.percent} % of the requests on ${canary.ready_replicas} ready, ${canary.checkpoint}, ${canary.version.slice(0, 8)}`),
  ];
}

/** @param {Replica} one */
function replica(one) {
  return line("replica",
    make("span", { class: one.status }, one.status), " ",
    make("code", {}, one.address || "no server"), one.canary ? " canary " : " ",
    one.status === "loading" && bar(one.progress),
    (one.reason || one.note) && line("dim", one.reason || one.note));
}

/** @param {Progress | null} progress */
function bar(progress) {
  const label = progress ? `${progress.phase} ${progress.done} of ${progress.total} ${progress.unit}`.trim() : "loading";
  /** @type {Record<string, string>} */
  const known = progress?.total ? { max: String(progress.total), value: String(progress.done) } : {};
  return make("progress", { "aria-label": label, title: label, ...known });
}

/**
 * A server without what always changes and says nothing, so that its row is drawn only if it changed.
 * @template {Server} T
 * @param {T} server
 */
export function steady({ seen_s_ago: seenS, ...rest }) {
  return { ...rest, silentS: seenS < SILENT_S ? 0 : Math.round(seenS) };
}

/** @param {Omit<Server, "seen_s_ago"> & { silentS: number, rates?: string[] }} one `rates`: tokens a second of each servable */
export function serverRow(one) {
  return row(
    [
      make("code", {}, one.address),
      line("dim", `${one.chip_type} ${one.chip_topology}${one.devices > 1 ? `, ${one.devices} devices` : ""}`),
      one.debug_address && line("dim", `metrics at ${one.debug_address}`),
      one.silentS > 0 && line("trouble", `silent for ${one.silentS} s`),
      one.trouble && line("trouble", one.trouble),
      ...one.tags.map((tag) => make("span", { class: "tag" }, tag)),
    ],
    memory(one),
    lastMinute(one),
    [...one.servables.map((held, at) => servable(held, one.rates?.[at] ?? "–")), hidden(one.servables_hidden ?? 0, "models")]);
}

/** @param {{ memory_used: number, memory_total: number }} one */
function memory({ memory_used: used, memory_total: total }) {
  return [
    total > 0 && make("meter", { min: "0", max: String(total), value: String(used), "aria-label": "Memory used" }),
    line("dim", total ? `${bytes(used)} of ${bytes(total)}` : bytes(used)),
  ];
}

/** @param {Omit<Server, "seen_s_ago">} one */
function lastMinute(one) {
  if (one.dormant) return "dormant";
  const rate = one.successes_per_second || one.errors_per_second;
  return [
    rate ? `${figure(one.successes_per_second)} requests/s, ${duration(one.mean_latency_s)} each` : "no requests",
    one.pending_requests > 0 && line("dim", `${one.pending_requests} pending`),
    one.errors_per_second > 0 && line("trouble", `${figure(one.errors_per_second)} errors/s`),
  ];
}

/** @param {Servable} one @param {string} rate tokens a second, or – */
function servable(one, rate) {
  const { activity } = one;
  const share = activity.pages ? activity.pages_used / activity.pages : NaN;
  const kv = activity.pages > 0 && line("kv",
    make("meter", { min: "0", max: "1", value: String(share), "aria-label": `KV pages of ${one.model} in use` }),
    `${percent(share)} of KV pages`);
  const figures = [
    `${one.running} running`,
    `${one.queued} queued`,
    activity.slots > 0 && `${activity.slots} slots`,
    rate !== "–" && `${rate} tokens/s`,
  ].filter(Boolean).join(", ");
  return line("servable",
    make("span", { class: one.status }, one.status), ` ${one.model} `,
    one.memory > 0 && make("span", { class: "dim" }, bytes(one.memory)),
    one.status === "loading" && bar(one.progress),
    one.status === "loaded" && line("dim", figures),
    kv,
    one.memory_parts && line("dim", partsOf(one.memory_parts)),
    one.kernels && one.memory_parts !== undefined && line("dim", `kernels: ${one.kernels}`),
    one.reason && line("dim", one.reason));
}

/** @param {MemoryParts} parts */
function partsOf({ weights, kv, state, workspace, slots, context }) {
  /** @type {[string, number][]} */
  const sizes = [["weights", weights], ["KV pages", kv], ["slot state", state], ["workspace", workspace]];
  const sequences = slots ? `, ${slots} slots of ${context} tokens` : "";
  return sizes.filter(([, size]) => size).map(([name, size]) => `${name} ${bytes(size)}`).join(", ") + sequences;
}

/** A change of the cell, with who made it. @param {Change} one */
export function changeRow(one) {
  const by = one.by || make("span", { class: "dim" }, "-");
  return row(String(one.sequence), when(one.at_s), by, [make("b", {}, one.kind), " ", one.model_id, one.text && line("dim", one.text)]);
}
