/**
 * Reads the Markdown that models write (GitHub's), with formulas, into a tree of plain values. Pure:
 * `rendered.js` makes elements of it. HTML stays text.
 *
 * @typedef {{ tag: string, children: Part[], href?: string, lang?: string, start?: number, align?: string, checked?: boolean, display?: boolean }} Branch
 * @typedef {string | Branch} Part
 * @typedef {{ block: Branch, line: number }} Block `line`: of the text, where the block begins
 * @typedef {Record<string, unknown>} Defined links that are defined once for a whole text
 */

import { formulas } from "./formulas.js";
import { MarkdownIt } from "./markdown_library.js";

const reader = new MarkdownIt({ html: false, linkify: true }).use(formulas);
// Any other scheme could run a program; such a link stays the text that it is.
reader.validateLink = (/** @type {string} */ href) => /^https?:\/\//i.test(href);
// A name such as readme.md is no address.
reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false });

/** @type {Record<string, string>} */
const TAGS = { s: "del" };
const TASK = /^\[([ xX])\]\s+/;

/**
 * @param {string} text
 * @param {Defined} [defined] by what was read before; takes what this text defines
 * @returns {Block[]}
 */
export function blocks(text, defined = {}) {
  const root = { tag: "root", children: [] };
  /** @type {number[]} */
  const lines = [];
  /** @type {Branch[]} */
  const open = [root];
  for (const token of reader.parse(text, defined)) {
    const inside = open[open.length - 1];
    if (token.level === 0 && token.nesting >= 0) lines.push(token.map?.[0] ?? 0);
    if (token.nesting > 0) {
      const branch = branchOf(token);
      inside.children.push(branch);
      open.push(branch);
    } else if (token.nesting < 0) {
      const done = /** @type {Branch} */ (open.pop());
      if (token.hidden) unwrap(open[open.length - 1], done);
      else if (done.tag === "li") markTask(done);
    } else if (token.type === "inline") {
      inside.children.push(...inline(token.children ?? []));
    } else {
      inside.children.push(leafOf(token));
    }
  }
  return /** @type {Branch[]} */ (root.children).map((block, at) => ({ block, line: lines[at] }));
}

/** @param {any[]} tokens @returns {Part[]} */
function inline(tokens) {
  /** @type {Branch[]} */
  const open = [{ tag: "root", children: [] }];
  for (const token of tokens) {
    const { children } = open[open.length - 1];
    if (token.nesting > 0) {
      const branch = branchOf(token);
      children.push(branch);
      open.push(branch);
    } else if (token.nesting < 0) open.pop();
    else if (token.type === "text") children.push(token.content);
    else if (token.type === "softbreak" || token.type === "hardbreak") children.push({ tag: "br", children: [] });
    else if (token.type === "image") children.push({ tag: "a", href: token.attrGet("src"), children: [token.content || token.attrGet("src")] });
    else children.push(leafOf(token));
  }
  return open[0].children.filter((part) => part !== "");
}

/** @param {any} token one that opens @returns {Branch} */
function branchOf(token) {
  /** @type {Branch} */
  const branch = { tag: TAGS[token.tag] ?? token.tag, children: [] };
  const align = /text-align:(\w+)/.exec(token.attrGet("style") ?? "")?.[1];
  if (align) branch.align = align;
  if (token.tag === "a") branch.href = token.attrGet("href");
  if (token.tag === "ol") branch.start = Number(token.attrGet("start") ?? 1);
  return branch;
}

/** @param {any} token one without children @returns {Branch} */
function leafOf({ type, tag, content, info }) {
  if (type === "fence" || type === "code_block") {
    return { tag: "pre", lang: info.trim().split(/\s+/)[0], children: [content.replace(/\n$/, "")] };
  }
  if (type === "formula") return { tag: "math", display: tag === "display", children: [content] };
  if (type === "code_inline") return { tag: "code", children: [content] };
  return { tag, children: content ? [content] : [] };
}

/** Put the children of a paragraph that is none, in a tight list, in its place. @param {Branch} into @param {Branch} paragraph */
function unwrap(into, paragraph) {
  into.children.splice(into.children.indexOf(paragraph), 1, ...paragraph.children);
}

/** Take the box of a task from the text of its item. @param {Branch} item */
function markTask(item) {
  const [first] = item.children;
  const holder = typeof first === "object" && first.tag === "p" ? first : item;
  const [text] = holder.children;
  const box = typeof text === "string" ? TASK.exec(text) : null;
  if (!box || typeof text !== "string") return;
  item.checked = box[1] !== " ";
  holder.children[0] = text.slice(box[0].length);
}
