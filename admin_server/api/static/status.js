/** The status page: asks /status.json each second while it is seen, and shows it. */

import { found, make, tell } from "./element.js";
import { bytes } from "./quantity.js";
import { Rows } from "./rows.js";

const PAGE = 25;
const PAUSE_MS = 1000;

/** @type {Record<string, string | number>} */
const view = { models: "", models_from: 0, servers: "", servers_from: 0 };
const by = (/** @type {string} */ id) => found(id, HTMLElement);

/** @param {number} done @param {number} total @param {string} label */
function bar(done, total, label) {
  /** @type {Record<string, string>} */
  const known = total ? { max: String(total), value: String(done) } : {};
  return make("progress", { "aria-label": label, ...known });
}

/** @param {string} kind @param {...(import("./element.js").Child | import("./element.js").Child[])} children */
function line(kind, ...children) {
  return make("div", { class: kind }, ...children);
}

/** @param {...(import("./element.js").Child | import("./element.js").Child[])} cells */
function row(...cells) {
  return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
}

/** @param {number} count @param {string} things */
function hidden(count, things) {
  return count > 0 && line("dim", `and ${count} more ${things}`);
}

/** @param {any} one */
function replica(one) {
  const { progress } = one;
  return line("replica",
    make("span", { class: one.status }, one.status), " ",
    make("code", {}, one.address || "no server"), one.canary ? " canary " : " ",
    one.status === "loading" && bar(progress?.done ?? 0, progress?.total ?? 0, one.reason || "loading"),
    one.reason && line("dim", one.reason));
}

/** @param {any} one */
function wanted(one) {
  const { autoscaling: scaling, canary } = one;
  const whole = one.ready_replicas >= one.wanted_replicas;
  return [
    make("span", { class: whole ? "good" : "trouble" }, `${one.ready_replicas} of ${one.wanted_replicas}`),
    scaling && line("dim", `${scaling.min_replicas} to ${scaling.max_replicas} replicas, ${scaling.target_queue} waiting each`),
    one.scaling_reason && line("dim", one.scaling_reason),
    canary && line("dim", `canary: ${canary.percent} % of the requests on ${canary.ready_replicas} ready, ` +
      `${canary.checkpoint}, ${canary.version.slice(0, 8)}`),
  ];
}

/** @param {any} one */
function placeOf({ placement }) {
  const { tags, devices, memory } = placement;
  const parts = tags.map((/** @type {string} */ tag) => `tag ${tag}`);
  return [...parts, devices && `${devices} devices`, memory && bytes(memory)].filter(Boolean).join(", ");
}

/** @param {any} one */
function model(one) {
  const overrides = Object.entries(one.overrides).map(([key, value]) => `${key}=${value}`).join(" ");
  const place = placeOf(one);
  return row(
    one.model,
    [
      make("code", {}, one.model_path),
      line("dim", one.checkpoint),
      overrides && line("dim", overrides),
      place && line("dim", `on ${place}`),
      line("dim", "version ", make("code", {}, one.version.slice(0, 8)), one.revision ? `, revision ${one.revision}` : ""),
    ],
    wanted(one),
    [...one.replicas.map(replica), hidden(one.replicas_hidden, "replicas")]);
}

/** @param {any} one */
function requests(one) {
  if (one.dormant) return make("span", { class: "dim" }, "dormant");
  const idle = !one.successes_per_second && !one.errors_per_second && !one.pending_requests;
  if (idle) return make("span", { class: "dim" }, "none");
  return [
    `${one.pending_requests} pending, ${one.successes_per_second.toFixed(1)}/s, ${(1000 * one.mean_latency_s).toFixed(0)} ms`,
    one.errors_per_second > 0 && line("trouble", `${one.errors_per_second.toFixed(1)} errors/s`),
  ];
}

/** @param {any} one */
function partsOf(one) {
  const sizes = [["weights", one.weights], ["KV pages", one.kv], ["slot state", one.state], ["workspace", one.workspace]];
  const sequences = one.slots ? `, ${one.slots} slots of ${one.context} tokens` : "";
  return sizes.filter(([, size]) => size).map(([name, size]) => `${name} ${bytes(size)}`).join(", ") + sequences;
}

/** @param {any} one */
function servable(one) {
  const busy = one.queued || one.running ? ` ${one.running} running, ${one.queued} queued` : "";
  const { progress } = one;
  return line("",
    make("span", { class: one.status }, one.status), ` ${one.model} ${one.memory ? bytes(one.memory) : ""}${busy} `,
    one.memory_parts && line("dim", partsOf(one.memory_parts)),
    one.kernels && line("dim", `kernels: ${one.kernels}`),
    one.status === "loading" && progress && bar(progress.done, progress.total, progress.phase));
}

/** @param {any} one */
function memoryOf(one) {
  const used = bytes(one.memory_used);
  if (!one.memory_total) return used;
  return [bar(one.memory_used, one.memory_total, "memory used"), line("", `${used} of ${bytes(one.memory_total)}`)];
}

/** @param {any} one */
function server(one) {
  return row(
    [
      make("code", {}, one.address),
      one.debug_address && line("dim", `metrics at ${one.debug_address}`),
      one.silent_s > 0 && line("trouble", `silent for ${one.silent_s} s`),
      one.trouble && line("trouble", one.trouble),
      ...one.tags.map((/** @type {string} */ tag) => make("span", { class: "tag" }, tag)),
    ],
    [`${one.chip_type} ${one.chip_topology}`, one.devices > 0 && line("dim", `${one.devices} devices`)],
    memoryOf(one),
    requests(one),
    [...one.servables.map(servable), hidden(one.servables_hidden, "models")]);
}

/** @param {number} seconds */
function when(seconds) {
  const date = new Date(seconds * 1000);
  return make("time", { class: "tight", datetime: date.toISOString() }, date.toLocaleString());
}

/** @param {any} one */
function event(one) {
  const by = one.by || make("span", { class: "dim" }, "-");
  return row(String(one.sequence), when(one.at_s), by, [make("b", {}, one.kind), " ", one.model, one.text && line("dim", one.text)]);
}

/** @param {any} one */
function happening(one) {
  const bad = one.kind.endsWith("failed") || one.kind === "dropped";
  return row(when(one.at_s), make("span", { class: bad ? "trouble" : "" }, one.text));
}

/** @param {string} id @param {string} key @param {(one: any) => HTMLElement} make @param {string} nothing */
function rows(id, key, make, nothing) {
  return new Rows(by(id), { key: (/** @type {any} */ one) => String(one[key]), row: make, nothing });
}

const models = rows("models", "model", model, "No model is published.");
const servers = rows("servers", "address", server, "No model server has joined.");
const events = rows("events", "sequence", event, "None yet.");
const happenings = rows("happenings", "number", happening, "None yet.");

/** @param {string} name @param {number} count @param {number} here */
function showPages(name, count, here) {
  const start = Number(view[`${name}_from`]);
  by(`${name}-range`).textContent = count ? `${start + 1} to ${start + here} of ${count}` : "none";
  found(`${name}-back`, HTMLButtonElement).disabled = start === 0;
  found(`${name}-on`, HTMLButtonElement).disabled = start + here >= count;
  if (!here && start) view[`${name}_from`] = Math.max(0, Math.floor((count - 1) / PAGE) * PAGE);
}

/** @param {any} status */
function showHead(status) {
  const { totals } = status;
  document.title = `sax ${status.cell}`;
  by("cell").textContent = status.cell;
  by("state").textContent = "live";
  by("state").className = "good";
  tell(by("leadership"), status.leadership ?? "");
  by("store").textContent = status.store_trouble ? "store failing" : `store ok, record ${status.sequence}`;
  by("store").className = status.store_trouble ? "trouble" : "";
  by("totals").textContent = `${totals.models_ready} of ${totals.models} models ready, ${totals.ready_replicas} of ` +
    `${totals.wanted_replicas} replicas, ${totals.servers} servers, ${bytes(totals.memory_used)} of ${bytes(totals.memory_total)}`;
  tell(by("trouble"), [status.store_trouble, ...status.warnings].filter(Boolean).join("; "));
}

/** @param {any} status */
function show(status) {
  showHead(status);
  models.show(status.models, view.models ? "No matching model." : undefined);
  showPages("models", status.models_found, status.models.length);
  // Seconds since the last answer always change; they only matter from 3 s on.
  const heard = status.servers.map((/** @type {any} */ one) => {
    const { seen_s_ago: seenS, ...rest } = one;
    return { ...rest, silent_s: seenS < 3 ? 0 : Math.round(seenS) };
  });
  servers.show(heard, view.servers ? "No matching server." : undefined);
  showPages("servers", status.servers_found, heard.length);
  events.show(status.events);
  happenings.show(status.happenings);
}

let paused = false;
let timer = 0;
let asking = 0;

async function refresh() {
  clearTimeout(timer);
  const mine = ++asking;
  try {
    const query = new URLSearchParams(Object.entries({ ...view, limit: PAGE }).map(([name, value]) => [name, String(value)]));
    const answer = await fetch(`status.json?${query}`);
    const status = await answer.json();
    if (mine !== asking) return; // a newer request is in flight
    if (!answer.ok) throw new Error(status.error);
    show(status);
  } catch (error) {
    if (mine !== asking) return;
    by("state").textContent = `the admin server does not answer: ${error instanceof Error ? error.message : error}`;
    by("state").className = "trouble";
  }
  // A hidden tab does not poll; it refreshes when shown.
  if (!paused && !document.hidden) timer = window.setTimeout(() => void refresh(), PAUSE_MS);
}

for (const name of ["models", "servers"]) {
  const filter = found(`${name}-filter`, HTMLInputElement);
  const from = `${name}_from`;
  filter.addEventListener("input", () => {
    view[name] = filter.value.trim();
    view[from] = 0;
    void refresh();
  });
  by(`${name}-back`).addEventListener("click", () => {
    view[from] = Math.max(0, Number(view[from]) - PAGE);
    void refresh();
  });
  by(`${name}-on`).addEventListener("click", () => {
    view[from] = Number(view[from]) + PAGE;
    void refresh();
  });
}

by("pause").addEventListener("click", () => {
  paused = !paused;
  by("pause").setAttribute("aria-pressed", String(paused));
  by("pause").textContent = paused ? "Resume" : "Pause";
  if (!paused) void refresh();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused) void refresh();
});
document.addEventListener("keydown", (event) => {
  const writing = event.target instanceof HTMLElement && event.target.matches("input, textarea");
  if (event.key !== "/" || writing) return;
  event.preventDefault();
  by("models-filter").focus();
});
void refresh();
