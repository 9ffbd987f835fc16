/** What operators look at below the cell: running requests, keys, changes, the log. Each asks while it is open. */

import { ask } from "./api.js";
import { changeRow, row, when } from "./cell_rows.js";
import { found, make, tell } from "./element.js";
import { bytes, duration, figure } from "./quantity.js";
import { Rows } from "./rows.js";

/**
 * @typedef {{ number: number, id: string, key: string, path: string, model: string, phase: string, running_s: number, queue_s: number | null, sent_bytes: number, trace_url: string }} Request
 * @typedef {{ key: string, limits: string, requests: number, refused: number, prompt_tokens: number, completion_tokens: number, last_s: number }} Use
 * @typedef {{ at_s: number, level: string, logger: string, text: string }} LogLine
 */

const PAUSE_MS = 2000;
const MOST_LINES = 200;
const OWN_LOGS = 2; // of the gateway and the admin server, which every cell has
const OWN = "Those of your key or address only: the cell's operators see all.";

export class OperatorView {
  #shown = false;

  constructor() {
    this.parts = [
      new Part("requests", () => "cell/requests", ({ all, requests }) => {
        this.requests.show(requests);
        return all ? "" : OWN;
      }),
      new Part("keys", () => "cell/keys", ({ all, keys, since_s: sinceS }) => {
        this.keys.show(keys);
        return `Since this gateway began, ${new Date(sinceS * 1000).toLocaleString()}. ${all ? "" : OWN}`;
      }),
      new Part("changes", () => "events?limit=50", (changes) => {
        this.changes.show(changes);
        return "";
      }),
      new Part("log", () => `cell/log?${new URLSearchParams({ server: this.server.value })}`, ({ lines }) => {
        this.#showLog(lines);
        return lines.length ? "" : "No line yet.";
      }),
    ];
    this.server = found("log-server", HTMLSelectElement);
    this.server.addEventListener("change", () => {
      this.log.replaceChildren();
      this.#look();
    });
    this.requests = new Rows(found("requests", HTMLElement), {
      key: (/** @type {Request} */ one) => String(one.number),
      row: (/** @type {Request} */ one) => this.#request(one),
      nothing: "No request runs.",
    });
    this.keys = new Rows(found("keys", HTMLElement), {
      key: (/** @type {Use} */ one) => one.key,
      row: useRow,
      nothing: "No key was used.",
    });
    this.changes = new Rows(found("changes", HTMLElement), {
      key: (/** @type {import("./cell_rows.js").Change} */ one) => String(one.sequence),
      row: changeRow,
      nothing: "None yet.",
    });
    this.log = found("log", HTMLElement);
    document.addEventListener("visibilitychange", () => this.#look());
  }

  /** Whether the view can be seen: nothing is asked for otherwise. @param {boolean} shown */
  set shown(shown) {
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#look();
  }

  /** Offer the logs of these model servers. @param {string[]} addresses */
  set servers(addresses) {
    const known = [...this.server.options].slice(OWN_LOGS).map(({ value }) => value);
    if (known.join(" ") === addresses.join(" ")) return;
    const chosen = this.server.value;
    while (this.server.length > OWN_LOGS) this.server.remove(OWN_LOGS);
    this.server.append(...addresses.map((address) => make("option", { value: address }, address)));
    this.server.value = chosen;
    if (this.server.selectedIndex < 0) this.server.value = "";
  }

  #look() {
    for (const part of this.parts) part.watch(this.#shown && !document.hidden);
  }

  /** @param {Request} one */
  #request(one) {
    const end = make("button", { type: "button", class: "danger", "aria-label": `Cancel request ${one.number} of ${one.key}` }, "Cancel");
    end.addEventListener("click", async () => {
      end.disabled = true;
      await this.parts[0].does(() => ask(`cell/requests/${one.number}`, { method: "DELETE" }));
    });
    const trace = one.trace_url && make("a", { href: one.trace_url, target: "_blank", rel: "noopener noreferrer" }, "Trace");
    return row(
      [make("code", {}, one.key), make("div", { class: "dim" }, one.id)],
      [one.model || "–", make("div", { class: "dim" }, one.path)],
      [make("span", { class: ["answering", "decode"].includes(one.phase) ? "good" : "busy" }, one.phase), one.sent_bytes > 0 && make("div", { class: "dim" }, `${bytes(one.sent_bytes)} sent`)],
      [duration(one.running_s), one.queue_s !== null && make("div", { class: "dim" }, `${duration(one.queue_s)} in the queue`)],
      make("div", { class: "row-actions" }, trace, end),
    );
  }

  /** @param {LogLine[]} lines */
  #showLog(lines) {
    const follows = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
    this.log.replaceChildren(...lines.slice(-MOST_LINES).map(({ at_s: atS, level, logger, text }) => {
      const bad = level === "error" || level === "critical";
      const kind = bad ? "trouble" : level === "warning" ? "busy" : "";
      return make("div", { class: kind }, `${new Date(atS * 1000).toLocaleTimeString()} ${level} ${logger}: ${text}`);
    }));
    if (follows) this.log.scrollTop = this.log.scrollHeight;
  }
}

/** @param {Use} one */
function useRow(one) {
  return row(
    [make("code", {}, one.key), one.limits && make("div", { class: "dim" }, one.limits)],
    [figure(one.requests), one.refused > 0 && make("div", { class: "trouble" }, `${figure(one.refused)} failed or refused`)],
    figure(one.prompt_tokens),
    figure(one.completion_tokens),
    when(one.last_s),
  );
}

/** One part that opens and closes, and asks for its values every two seconds while it is open. */
class Part {
  #timer = 0;
  #asking = 0;
  #seen = false;

  /**
   * @param {string} name of its elements
   * @param {() => string} path
   * @param {(reply: any) => string} show returns a note on what is shown; "": none
   */
  constructor(name, path, show) {
    this.path = path;
    this.show = show;
    this.details = found(`${name}-part`, HTMLDetailsElement);
    this.note = found(`${name}-note`, HTMLElement);
    this.details.addEventListener("toggle", () => this.watch(this.#seen));
  }

  /** @param {boolean} seen */
  watch(seen) {
    this.#seen = seen;
    clearTimeout(this.#timer);
    if (seen && this.details.open) void this.does(async () => {});
  }

  /** Do something, then look again; say what goes wrong. @param {() => Promise<unknown>} first */
  async does(first) {
    clearTimeout(this.#timer);
    const mine = ++this.#asking;
    let again = true;
    try {
      await first();
      const reply = await (await ask(this.path())).json();
      if (mine !== this.#asking) return; // a newer question is on its way
      tell(this.note, this.show(reply));
      this.note.classList.remove("trouble");
    } catch (error) {
      if (mine !== this.#asking) return;
      tell(this.note, error instanceof Error ? error.message : String(error));
      this.note.classList.add("trouble");
      // A right that is missing does not come by asking again.
      again = !(error instanceof Error && "status" in error && [401, 403, 404].includes(Number(error.status)));
    }
    if (again && this.#seen && this.details.open) this.#timer = window.setTimeout(() => this.watch(this.#seen), PAUSE_MS);
  }
}
