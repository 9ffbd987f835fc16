/**
 * Figures of a cell over time, from successive replies of /cell. Pure.
 *
 * Servers report totals; a rate is the difference of two, by the seconds between them. Servers are
 * heard about once a second, so a rate is taken over some seconds, or it would jump.
 *
 * @typedef {import("./cell_rows.js").Activity} Activity
 * @typedef {import("./cell_rows.js").Model} Model
 * @typedef {import("./cell_rows.js").Server} Server
 * @typedef {import("./cell_rows.js").Servable} Servable
 * @typedef {{ cell: string, now_s: number, seen_at_s: number, admin: string, may_publish: boolean | null, models: Model[], models_hidden: number, servers: Server[], servers_hidden: number }} Cell
 *
 * @typedef {object} Sample values that cannot be said are NaN
 * @property {number} atS
 * @property {number} generated tokens a second
 * @property {number} prompt tokens a second
 * @property {number} running
 * @property {number} queued
 * @property {number} kv share of the pages in use
 * @property {number} firstTokenS mean of the answers that began
 * @property {number} intervalS mean time per token of the answers that ended
 */

const WINDOW_S = 6;
const KEPT_S = 300;

/** @type {(keyof Activity)[]} */
const TOTALS = ["prompt_tokens", "generated_tokens", "answers_begun", "first_token_s", "answers_timed", "token_interval_s"];

/** @typedef {{ atS: number, of: Map<string, Activity> }} Sight */

export class CellFigures {
  /** @type {Sight[]} */
  #sights = [];
  /** @type {Sample[]} */
  samples = [];

  /** @param {Cell} cell */
  push(cell) {
    const last = this.#sights.at(-1);
    if (last && cell.seen_at_s <= last.atS) return; // nothing newer is known
    const sight = { atS: cell.seen_at_s, of: activities(cell) };
    this.#sights = [...this.#sights.filter((each) => each.atS >= sight.atS - WINDOW_S - 3), sight];
    const grown = this.#grown();
    this.samples = [...this.samples.filter((each) => each.atS >= sight.atS - KEPT_S), sampleOf(cell, grown)];
  }

  /**
   * Tokens a second that a model generates on a server; NaN if that cannot be said.
   * @param {string} address
   * @param {string} model
   */
  rateOf(address, model) {
    const grown = this.#grown([`${address} ${model}`]);
    return grown.generated_tokens / grown.seconds;
  }

  /**
   * How far the totals grew within the window.
   * @param {string[]} [keys] undefined: of all
   */
  #grown(keys) {
    const [now, then] = [this.#sights.at(-1), this.#then()];
    /** @type {Record<string, number>} */
    const grown = { seconds: now && then ? now.atS - then.atS : NaN };
    for (const name of TOTALS) grown[name] = 0;
    for (const key of keys ?? now?.of.keys() ?? []) {
      const [after, before] = [now?.of.get(key), then?.of.get(key)];
      // Totals that fell are those of a model that was loaded anew.
      if (!after || !before || after.generated_tokens < before.generated_tokens) continue;
      for (const name of TOTALS) grown[name] += Math.max(0, after[name] - before[name]);
    }
    return grown;
  }

  /** The oldest sight within the window, but the last. */
  #then() {
    const now = this.#sights.at(-1);
    return this.#sights.slice(0, -1).find((each) => now && now.atS - each.atS <= WINDOW_S);
  }
}

/** @param {Cell} cell */
export function totalsOf(cell) {
  const held = cell.servers.flatMap((server) => server.servables);
  const sum = (/** @type {(one: Servable) => number} */ read) => held.reduce((all, one) => all + read(one), 0);
  return {
    running: sum((one) => one.running),
    queued: sum((one) => one.queued),
    pages: sum((one) => one.activity.pages),
    pagesUsed: sum((one) => one.activity.pages_used),
  };
}

/** @param {Cell} cell @param {Record<string, number>} grown @returns {Sample} */
function sampleOf(cell, grown) {
  const totals = totalsOf(cell);
  return {
    atS: cell.seen_at_s,
    generated: grown.generated_tokens / grown.seconds,
    prompt: grown.prompt_tokens / grown.seconds,
    running: totals.running,
    queued: totals.queued,
    kv: totals.pages ? totals.pagesUsed / totals.pages : NaN,
    firstTokenS: grown.answers_begun ? grown.first_token_s / grown.answers_begun : NaN,
    intervalS: grown.answers_timed ? grown.token_interval_s / grown.answers_timed : NaN,
  };
}

/** @param {Cell} cell @returns {Map<string, Activity>} */
function activities(cell) {
  return new Map(
    cell.servers.flatMap((server) =>
      server.servables.map((one) => /** @type {[string, Activity]} */ ([`${server.address} ${one.model}`, one.activity])),
    ),
  );
}
