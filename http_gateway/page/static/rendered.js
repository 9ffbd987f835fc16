/** Makes elements of Markdown, block by block, and keeps those that did not change. */

import { make } from "./element.js";
import { blocks } from "./markdown.js";

/** @import { Branch, Part } from "./markdown.js" */

const TAGS = new Set(
  ["p", "ul", "ol", "li", "blockquote", "hr", "br", "code", "strong", "em", "tr", "td", "th"],
);

export class Rendered {
  /** @type {string[]} */
  #known = [];

  /** @param {HTMLElement} into */
  constructor(into) {
    this.into = into;
  }

  /** @param {string} text */
  show(text) {
    const made = blocks(text);
    const told = made.map((block) => JSON.stringify(block));
    let same = 0;
    while (same < told.length && told[same] === this.#known[same]) same++;
    while (this.into.childNodes.length > same) this.into.lastChild?.remove();
    this.into.append(...made.slice(same).map(element));
    this.#known = told;
  }
}

/** @param {Part} part @returns {Node} */
function element(part) {
  if (typeof part === "string") return document.createTextNode(part);
  const children = () => part.children.map(element);
  if (part.tag === "pre") return codeBlock(part);
  if (part.tag === "table") {
    return make("div", { class: "scroll" }, make("table", {}, make("tbody", {}, children())));
  }
  if (part.tag === "a") {
    return make("a", { href: part.href ?? "", target: "_blank", rel: "noopener noreferrer" }, children());
  }
  // The page has headings of its own, above these.
  if (/^h[1-6]$/.test(part.tag)) return make("h3", {}, children());
  if (!TAGS.has(part.tag)) return make("span", {}, children());
  const start = part.tag === "ol" && part.start !== 1 && String(part.start);
  return make(/** @type {keyof HTMLElementTagNameMap} */ (part.tag), { start }, children());
}

/** @param {Branch} part */
function codeBlock(part) {
  const text = String(part.children[0] ?? "");
  const copy = make("button", { type: "button", class: "copy" }, "Copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
  });
  const head = make("figcaption", {}, make("span", { class: "dim" }, part.lang || "code"), copy);
  return make("figure", { class: "block" }, head, make("pre", { tabindex: "0" }, make("code", {}, text)));
}
