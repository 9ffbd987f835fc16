/** The status page: asks /status.json each second while it is seen, and shows it. */

import { changeRow, modelRow, row, serverRow, steady, tiles, when } from "./cell_rows.js";
import { found, make, tell } from "./element.js";
import { bytes } from "./quantity.js";
import { Rows } from "./rows.js";

const PAGE = 25;
const PAUSE_MS = 1000;

/** @type {Record<string, string | number>} */
const view = { models: "", models_from: 0, servers: "", servers_from: 0 };
const by = (/** @type {string} */ id) => found(id, HTMLElement);

/** @param {any} one */
function happening(one) {
  const bad = one.kind.endsWith("failed") || one.kind === "dropped";
  return row(when(one.at_s), make("span", { class: bad ? "trouble" : "" }, one.text));
}

/** @param {string} id @param {string} key @param {(one: any) => HTMLElement} make @param {string} nothing */
function rows(id, key, make, nothing) {
  return new Rows(by(id), { key: (/** @type {any} */ one) => String(one[key]), row: make, nothing });
}

const models = rows("models", "model", (one) => modelRow(one), "No model is published.");
const servers = rows("servers", "address", serverRow, "No model server has joined.");
const events = rows("events", "sequence", changeRow, "None yet.");
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
  by("store").className = status.store_trouble ? "trouble" : "dim";
  by("totals").replaceChildren(...tiles([
    [`${totals.models_ready} of ${totals.models}`, "models ready"],
    [`${totals.ready_replicas} of ${totals.wanted_replicas}`, "replicas ready"],
    [String(totals.servers), totals.servers === 1 ? "model server" : "model servers"],
    [String(totals.servers_in_trouble), "servers in trouble"],
    [bytes(totals.memory_used), `of ${bytes(totals.memory_total)} in use`],
  ]));
  tell(by("trouble"), [status.store_trouble, ...status.warnings].filter(Boolean).join("; "));
}

/** @param {any} status */
function show(status) {
  showHead(status);
  models.show(status.models, view.models ? "No matching model." : undefined);
  showPages("models", status.models_found, status.models.length);
  servers.show(status.servers.map(steady), view.servers ? "No matching server." : undefined);
  showPages("servers", status.servers_found, status.servers.length);
  events.show(status.events.map((/** @type {any} */ { model, ...rest }) => ({ ...rest, model_id: model })));
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
