/** Watches the cell: asks /cell every two seconds while the page is seen. */

import { ApiError, ask } from "./api.js";

/** @import { Cell } from "./cell_figures.js" */

const PAUSE_MS = 2000;

export class CellWatch {
  #timer = 0;
  #asking = 0;

  /** @param {{ seen: (cell: Cell) => void, failed: (error: ApiError) => void }} on */
  constructor(on) {
    this.on = on;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) void this.look();
    });
  }

  /** Ask now, and again after a while. */
  async look() {
    clearTimeout(this.#timer);
    const mine = ++this.#asking;
    try {
      const reply = await ask("cell");
      const cell = await reply.json();
      if (mine === this.#asking) this.on.seen(cell);
    } catch (error) {
      if (mine !== this.#asking) return; // a newer request is on its way
      this.on.failed(error instanceof ApiError ? error : new ApiError(0, String(error)));
      // Each wrong key is refused, and an operator may be watching for those.
      if (error instanceof ApiError && error.status === 401) return;
    }
    if (mine === this.#asking && !document.hidden) {
      this.#timer = window.setTimeout(() => void this.look(), PAUSE_MS);
    }
  }
}
