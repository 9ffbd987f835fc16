/** The dialogs that publish and unpublish a model. */

import { ask } from "./api.js";
import { found, tell } from "./element.js";

export class PublishDialogs {
  /** @param {{ changed: () => void }} on */
  constructor(on) {
    this.on = on;
    this.publishing = found("publish-dialog", HTMLDialogElement);
    this.unpublishing = found("unpublish-dialog", HTMLDialogElement);
    this.unpublished = found("unpublish-model", HTMLElement);
    this.model = found("publish-model", HTMLInputElement);
    found("publish-open", HTMLButtonElement).addEventListener("click", () => this.#open());
    this.#sends("publish-form", this.publishing, "publish-trouble", () => ask("publish", { body: this.#spec() }));
    this.#sends("unpublish-form", this.unpublishing, "unpublish-trouble", () => {
      return ask("unpublish", { body: { model: this.unpublished.textContent } });
    });
  }

  /** Names of models begin with it. @param {string} cell */
  set cell(cell) {
    if (cell) this.model.placeholder = `${cell}/my_model`;
    this.prefix = cell;
  }

  /** @param {string} model */
  unpublish(model) {
    tell(found("unpublish-trouble", HTMLElement), "");
    this.unpublished.textContent = model;
    this.unpublishing.showModal();
  }

  #open() {
    tell(found("publish-trouble", HTMLElement), "");
    if (!this.model.value && this.prefix) this.model.value = `${this.prefix}/`;
    this.publishing.showModal();
    this.model.focus();
  }

  #spec() {
    const value = (/** @type {string} */ id) => found(id, HTMLInputElement).value.trim();
    const overrides = overridesOf(found("publish-overrides", HTMLTextAreaElement).value);
    const spec = {
      model: value("publish-model"),
      model_path: value("publish-path"),
      checkpoint: value("publish-checkpoint"),
      replicas: Number(value("publish-replicas")),
    };
    return Object.keys(overrides).length ? { ...spec, overrides } : spec;
  }

  /**
   * Send when the form is sent; stay open with the reason if that fails.
   * @param {string} form @param {HTMLDialogElement} dialog @param {string} trouble @param {() => Promise<unknown>} send
   */
  #sends(form, dialog, trouble, send) {
    const node = found(form, HTMLFormElement);
    const buttons = node.querySelectorAll("button");
    node.addEventListener("submit", async (event) => {
      event.preventDefault();
      buttons.forEach((button) => (button.disabled = true));
      try {
        await send();
        dialog.close();
        this.on.changed();
      } catch (error) {
        tell(found(trouble, HTMLElement), error instanceof Error ? error.message : String(error));
      } finally {
        buttons.forEach((button) => (button.disabled = false));
      }
    });
  }
}

/**
 * Read lines of KEY=JSON.
 * @param {string} text
 * @returns {Record<string, string>}
 * @throws {Error} in words for the user
 */
export function overridesOf(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return Object.fromEntries(
    lines.map((line) => {
      const [, name, value] = /^([^=\s]+)\s*=\s*(.+)$/.exec(line) ?? [];
      if (!name) throw new Error(`An override is not KEY=JSON: ${line}`);
      return [name, value];
    }),
  );
}
