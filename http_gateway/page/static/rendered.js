/** Makes elements of Markdown, block by block, and keeps those that did not change. */

import { copyButton } from "./clipboard.js";
import { make } from "./element.js";
import { formula, highlight } from "./late_libraries.js";
import { blocks } from "./markdown.js";

/** @import { Branch, Defined, Part } from "./markdown.js" */

const TAGS = new Set(
  ["p", "ul", "ol", "blockquote", "hr", "br", "code", "strong", "em", "del", "thead", "tbody", "tr"],
);
/** Blocks that long answers are made of. */
const GROWING = new Set(["p", "ul", "ol", "li", "blockquote", "table", "thead", "tbody", "tr", "td", "pre"]);
const OPEN = 2; // blocks at the end that what follows may still change

export class Rendered {
  /** What each block that is shown was made of. @type {string[]} */
  #known = [];
  #text = "";
  /** Blocks that are read no more until the text is over, and where the rest begins. */
  #done = { blocks: 0, offset: 0 };
  /** @type {Defined} */
  #defined = {};
  /** The last block that is shown. @type {Branch | null} */
  #last = null;

  /** @param {HTMLElement} into */
  constructor(into) {
    this.into = into;
  }

  /** @param {string} text @param {boolean} over false while more of it may come */
  show(text, over) {
    if (over || !text.startsWith(this.#text)) {
      this.#done = { blocks: 0, offset: 0 };
      this.#defined = {};
    }
    this.#text = text;
    const { blocks: kept, offset } = this.#done;
    const rest = text.slice(offset);
    const made = blocks(rest, this.#defined);
    this.#put(kept, made.map(({ block }) => block), over);
    const next = made.length - OPEN;
    if (!over && next > 0) this.#done = { blocks: kept + next, offset: offset + startOf(rest, made[next].line) };
  }

  /** @param {number} from @param {Branch[]} made @param {boolean} over */
  #put(from, made, over) {
    const told = made.map((block, at) => JSON.stringify([block, isFinal(block, over || at < made.length - 1)]));
    let same = 0;
    while (same < told.length && told[same] === this.#known[from + same]) same++;
    const last = this.into.childNodes.length - 1;
    // Only the last block grows: code that is whole is made anew, in colour.
    const grows = last === from + same && same === made.length - 1 && !over;
    if (grows && this.#last && grow(this.into.childNodes[last], this.#last, made[same])) same++;
    while (this.into.childNodes.length > from + same) this.into.lastChild?.remove();
    this.into.append(...made.slice(same).map((block, at) => element(block, over || same + at < made.length - 1)));
    this.#known.length = from;
    this.#known.push(...told);
    this.#last = made.at(-1) ?? null;
  }
}

/**
 * Change a node into what a longer text makes of it, and keep what is the same in both.
 * @param {Node} node @param {Part} before @param {Part} after
 * @returns {boolean} false if it has to be made anew
 */
function grow(node, before, after) {
  if (typeof before === "string" || typeof after === "string") {
    if (typeof before !== "string" || typeof after !== "string") return false;
    node.textContent = after;
    return true;
  }
  const differ = before.tag !== after.tag || before.start !== after.start || before.lang !== after.lang;
  if (differ || !GROWING.has(after.tag) || before.checked !== undefined || after.checked !== undefined) return false;
  const into = insideOf(node, after.tag);
  if (after.tag === "pre") {
    into.textContent = String(after.children[0] ?? "");
    return true;
  }
  let same = 0;
  while (same < Math.min(before.children.length, after.children.length) && alike(before.children[same], after.children[same])) same++;
  const grows = same === before.children.length - 1 && same < after.children.length;
  if (grows && grow(into.childNodes[same], before.children[same], after.children[same])) same++;
  while (into.childNodes.length > same) into.lastChild?.remove();
  for (const each of after.children.slice(same)) into.appendChild(element(each, false));
  return true;
}

/** The node that has the children of a block. @param {Node} node @param {string} tag @returns {Node} */
function insideOf(node, tag) {
  if (tag === "table") return /** @type {Node} */ (node.firstChild);
  return tag === "pre" ? /** @type {Node} */ (node.lastChild?.firstChild) : node;
}

/** @param {Part} one @param {Part} other */
function alike(one, other) {
  return one === other || JSON.stringify(one) === JSON.stringify(other);
}

/** Only code looks otherwise once it is whole. @param {Branch} block @param {boolean} final */
function isFinal(block, final) {
  return final && JSON.stringify(block).includes('"tag":"pre"');
}

/** @param {string} text @param {number} line @returns {number} */
function startOf(text, line) {
  let at = 0;
  for (let n = 0; n < line; n++) at = text.indexOf("\n", at) + 1;
  return at;
}

/** @param {Part} part @param {boolean} final @returns {Node} */
function element(part, final) {
  if (typeof part === "string") return document.createTextNode(part);
  const children = () => part.children.map((each) => element(each, final));
  switch (part.tag) {
    case "pre":
      return codeBlock(part, final);
    case "math":
      return formulaOf(part);
    case "table":
      return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" }, make("table", {}, children()));
    case "a":
      return make("a", { href: part.href ?? "", target: "_blank", rel: "noopener noreferrer" }, children());
    case "th":
    case "td":
      return make(part.tag, { class: part.align ? `to-${part.align}` : false }, children());
    case "li":
      return listItem(part, children());
  }
  // The page's own heading is above these; a level that is left out would confuse who cannot see them.
  if (/^h[1-6]$/.test(part.tag)) return make("h2", { class: `like-${part.tag}` }, children());
  if (!TAGS.has(part.tag)) return make("span", {}, children());
  const start = part.tag === "ol" && part.start !== 1 && String(part.start);
  return make(/** @type {keyof HTMLElementTagNameMap} */ (part.tag), { start }, children());
}

/** @param {Branch} part @param {Node[]} children */
function listItem({ checked }, children) {
  if (checked === undefined) return make("li", {}, children);
  const box = make("input", { type: "checkbox", disabled: true, checked, "aria-label": checked ? "done" : "to do" });
  return make("li", { class: "task" }, box, children);
}

/** @param {Branch} part @param {boolean} final */
function codeBlock(part, final) {
  const text = String(part.children[0] ?? "");
  const code = make("code", {}, text);
  if (final && part.lang) void highlight(code, part.lang, text);
  const head = make("figcaption", {}, make("span", { class: "dim" }, part.lang || "code"), copyButton(() => code.textContent ?? "", "copy"));
  return make("figure", { class: "block" }, head, make("pre", { tabindex: "0" }, code));
}

/** @param {Branch} part */
function formulaOf({ children, display }) {
  const text = String(children[0]);
  const node = make("span", { class: display ? "formula display" : "formula", role: "math", "aria-label": text }, text);
  void formula(node, text, display === true);
  return node;
}
