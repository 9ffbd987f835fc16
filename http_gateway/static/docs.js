/** /docs: search, and the forms that send requests and show their answers as they come. */

import { found, tell } from "./element.js";

const KEPT = "sax-key"; // as the page for chats keeps it: in this tab only
const MOST = 200_000; // characters of an answer that are shown
const PLACEHOLDER = "MODEL";

/** @returns {Record<string, string>} */
function headers() {
  const key = sessionStorage.getItem(KEPT);
  return key ? { authorization: `Bearer ${key}` } : {};
}

class TryForm {
  /** @param {HTMLFormElement} form */
  constructor(form) {
    this.form = form;
    this.status = /** @type {HTMLElement} */ (form.querySelector("[role=status]"));
    this.answer = /** @type {HTMLElement} */ (form.querySelector("pre"));
    this.stop = /** @type {HTMLButtonElement} */ (form.querySelector("[data-stop]"));
    /** @type {AbortController | null} */
    this.running = null;
    this.stop.addEventListener("click", () => this.running?.abort());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.send();
    });
  }

  async send() {
    this.running?.abort();
    const running = (this.running = new AbortController());
    this.stop.hidden = false;
    this.answer.hidden = false;
    this.answer.textContent = "";
    this.status.textContent = "Waiting for the answer.";
    try {
      const reply = await fetch(this.#url(), { ...this.#request(), signal: running.signal });
      await this.#show(reply);
    } catch (error) {
      if (this.running !== running) return; // another one was sent meanwhile
      this.status.textContent = running.signal.aborted
        ? "Stopped."
        : `Nothing was answered: ${error instanceof Error ? error.message : error}.`;
    }
    if (this.running === running) this.stop.hidden = true;
  }

  /** @returns {HTMLInputElement[]} */
  get inputs() {
    return [...this.form.querySelectorAll("input")];
  }

  #url() {
    let path = this.form.dataset.path ?? "/";
    const query = new URLSearchParams();
    for (const { name, value, dataset } of this.inputs) {
      if (dataset.where === "path") path = path.replace(`{${name}}`, encodeURIComponent(value));
      if (dataset.where === "query" && value) query.set(name, value);
    }
    // Below the folder of this page, wherever a proxy puts it.
    const url = new URL(path.slice(1), document.baseURI);
    url.search = query.toString();
    return url;
  }

  /** @returns {RequestInit} */
  #request() {
    const method = this.form.dataset.method;
    /** @type {RequestInit} */
    const request = { method, headers: headers(), credentials: "omit", cache: "no-store" };
    const body = this.form.querySelector("textarea");
    if (this.form.dataset.form) {
      const form = new FormData();
      for (const { name, value, files } of this.inputs) {
        if (files) for (const file of files) form.append(name, file);
        else if (value) form.append(name, value);
      }
      return { ...request, body: form };
    }
    if (!body) return request;
    const json = { "content-type": "application/json" };
    return { ...request, headers: { ...headers(), ...json }, body: body.value };
  }

  /** @param {Response} reply */
  async #show(reply) {
    const began = performance.now();
    const kind = reply.headers.get("content-type") ?? "";
    const words = () => `${reply.status} ${reply.statusText}, ${kind || "no body"}`;
    this.status.textContent = `${words()}, coming.`;
    let text = "";
    const reader = reply.body?.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const part = await reader?.read();
      if (!part || part.done) break;
      text += part.value;
      this.answer.textContent = shown(text);
    }
    if (kind.startsWith("application/json")) this.answer.textContent = shown(pretty(text));
    const seconds = ((performance.now() - began) / 1000).toFixed(2);
    this.status.textContent = `${words()}, whole after ${seconds} s.`;
  }
}

/** @param {string} text */
function shown(text) {
  return text.length > MOST ? `(the end of ${text.length} characters)\n${text.slice(-MOST)}` : text;
}

/** @param {string} text */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** @param {string} words */
function search(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  let many = 0;
  for (const section of document.querySelectorAll("section")) {
    let some = 0;
    for (const part of section.querySelectorAll("details")) {
      const said = part.dataset.said ?? (part.dataset.said = (part.textContent ?? "").toLowerCase());
      part.hidden = !wanted.every((word) => said.includes(word));
      some += part.hidden ? 0 : 1;
    }
    section.hidden = some === 0;
    many += some;
  }
  tell(found("found", HTMLElement), wanted.length ? `${many} routes and types found.` : "");
}

/** Offer the models that the key may see, and put the chosen one into the bodies. */
async function offerModels() {
  const choice = found("model", HTMLSelectElement);
  const before = choice.value;
  /** @type {string[]} */
  let names = [];
  try {
    const reply = await fetch("v1/models", { headers: headers(), credentials: "omit" });
    if (reply.ok) names = (await reply.json()).data.map((/** @type {any} */ each) => each.id);
  } catch {
    // then there is none to choose
  }
  choice.replaceChildren(...names.map((name) => new Option(name, name, false, name === before)));
  choice.disabled = names.length === 0;
  putModel(before);
}

let put = PLACEHOLDER;

/** @param {string} before */
function putModel(before) {
  const name = found("model", HTMLSelectElement).value || before || PLACEHOLDER;
  for (const body of document.querySelectorAll("textarea")) {
    body.value = body.value.replaceAll(JSON.stringify(put), JSON.stringify(name));
  }
  for (const input of document.querySelectorAll("input")) {
    if (input.type === "text" && input.value === put) input.value = name;
  }
  put = name;
}

function openNamed() {
  const named = document.getElementById(location.hash.slice(1));
  if (named instanceof HTMLDetailsElement) named.open = true;
}

for (const form of document.querySelectorAll("form.try")) {
  if (form instanceof HTMLFormElement) new TryForm(form);
}
const box = found("search", HTMLInputElement);
box.addEventListener("input", () => search(box.value));
found("search-form", HTMLFormElement).addEventListener("submit", (event) => event.preventDefault());
const key = found("key", HTMLInputElement);
key.value = sessionStorage.getItem(KEPT) ?? "";
key.addEventListener("change", () => {
  if (key.value.trim()) sessionStorage.setItem(KEPT, key.value.trim());
  else sessionStorage.removeItem(KEPT);
  void offerModels();
});
found("model", HTMLSelectElement).addEventListener("change", () => putModel(PLACEHOLDER));
window.addEventListener("hashchange", openNamed);
openNamed();
void offerModels();
