/** The dialog of a model's versions: what each changed, and the way back to it. */

import { ask } from "./api.js";
import { when } from "./cell_rows.js";
import { found, make, tell } from "./element.js";

/** @typedef {{ version: string, checkpoint: string, overrides: Record<string, string>, at_s: number, by: string, current: boolean }} Version */

export class VersionsDialog {
  /** @param {{ changed: () => void }} on */
  constructor(on) {
    this.on = on;
    this.dialog = found("versions-dialog", HTMLDialogElement);
    this.list = found("versions-list", HTMLElement);
    this.trouble = found("versions-trouble", HTMLElement);
  }

  /** @param {string} model @param {boolean} mayChange */
  async open(model, mayChange) {
    const opened = (this.opened = Symbol(model)); // another may be opened before the answer comes
    found("versions-model", HTMLElement).textContent = model;
    this.list.replaceChildren(make("li", { class: "dim" }, "…"));
    tell(this.trouble, "");
    if (!this.dialog.open) this.dialog.showModal();
    try {
      /** @type {Version[]} */
      const versions = await (await ask(`versions?${new URLSearchParams({ model })}`)).json();
      if (opened !== this.opened) return;
      const current = versions.find((one) => one.current);
      this.list.replaceChildren(...versions.map((one) => this.#version(model, one, current, mayChange)));
    } catch (error) {
      if (opened !== this.opened) return;
      this.list.replaceChildren();
      tell(this.trouble, error instanceof Error ? error.message : String(error));
    }
  }

  /** @param {string} model @param {Version} one @param {Version | undefined} current @param {boolean} mayChange */
  #version(model, one, current, mayChange) {
    const back = make("button", { type: "button", "aria-label": `Roll back to ${one.version.slice(0, 8)}` }, "Roll back to it");
    back.addEventListener("click", async () => {
      back.disabled = true;
      try {
        await ask("rollback", { body: { model, version: one.version } });
        this.on.changed();
        await this.open(model, mayChange);
      } catch (error) {
        back.disabled = false;
        tell(this.trouble, error instanceof Error ? error.message : String(error));
      }
    });
    const head = make("div", { class: "head" }, make("code", {}, one.version.slice(0, 8)), one.at_s > 0 && when(one.at_s), one.by && `by ${one.by}`,
      one.current ? make("span", { class: "good" }, "current") : mayChange && back);
    const lines = current && !one.current ? differences(current, one) : settingsOf(one).map(([name, value]) => ({ kind: "", text: `${name}: ${value}` }));
    return make("li", {}, head, make("div", { class: "diff" }, lines.map(({ kind, text }) => make("div", { class: kind }, text))));
  }
}

/** @param {Version} one @returns {[string, string][]} */
function settingsOf({ checkpoint, overrides }) {
  return [["checkpoint", checkpoint], ...Object.entries(overrides).sort(([a], [b]) => (a < b ? -1 : 1))];
}

/**
 * What a rollback to a version would take away (-) and bring (+).
 * @param {Version} current
 * @param {Version} other
 * @returns {{ kind: string, text: string }[]}
 */
export function differences(current, other) {
  const [now, then] = [new Map(settingsOf(current)), new Map(settingsOf(other))];
  const names = [...new Set([...now.keys(), ...then.keys()])].filter((name) => now.get(name) !== then.get(name));
  if (!names.length) return [{ kind: "dim", text: "the same checkpoint and overrides" }];
  return names.flatMap((name) => [
    ...(now.has(name) ? [{ kind: "minus", text: `- ${name}: ${now.get(name)}` }] : []),
    ...(then.has(name) ? [{ kind: "plus", text: `+ ${name}: ${then.get(name)}` }] : []),
  ]);
}
