/**
 * Reads the Markdown that models write, into a tree of plain values. Pure: `rendered.js` makes
 * elements of it. What is no Markdown stays text, HTML too.
 *
 * @typedef {{ tag: string, children: Part[], href?: string, lang?: string, start?: number }} Branch
 * @typedef {string | Branch} Part
 */

const FENCE = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^\s{0,3}>\s?(.*)$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MOST_DEPTH = 8;

/**
 * @param {string} text
 * @param {number} [depth]
 * @returns {Branch[]}
 */
export function blocks(text, depth = 0) {
  const lines = text.split(/\r\n?|\n/);
  /** @type {Branch[]} */
  const made = [];
  for (let at = 0; at < lines.length; ) {
    const [block, next] = blockAt(lines, at, depth);
    if (block) made.push(block);
    at = next;
  }
  return made;
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {[Branch | null, number]} the block, and the line after it
 */
function blockAt(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  if (FENCE.test(line)) return code(lines, at);
  const heading = HEADING.exec(line);
  if (heading) return [{ tag: `h${heading[1].length}`, children: inline(heading[2]) }, at + 1];
  if (RULE.test(line)) return [{ tag: "hr", children: [] }, at + 1];
  if (depth < MOST_DEPTH && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < MOST_DEPTH && ITEM.test(line)) return list(lines, at, depth);
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at);
}

/** @param {string[]} lines @param {number} at @returns {[Branch, number]} */
function code(lines, at) {
  const [, mark, lang] = /** @type {RegExpExecArray} */ (FENCE.exec(lines[at]));
  let end = at + 1;
  while (end < lines.length && !isEnd(lines[end], mark)) end++;
  return [{ tag: "pre", lang, children: [lines.slice(at + 1, end).join("\n")] }, end + 1];
}

/** @param {string} line @param {string} mark */
function isEnd(line, mark) {
  const text = line.trim();
  return text.length >= mark.length && [...text].every((letter) => letter === mark[0]);
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Branch, number]} */
function quote(lines, at, depth) {
  const inner = [];
  let end = at;
  for (let match; end < lines.length && (match = QUOTE.exec(lines[end])); end++) inner.push(match[1]);
  return [{ tag: "blockquote", children: blocks(inner.join("\n"), depth + 1) }, end];
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Branch, number]} */
function list(lines, at, depth) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[at]));
  const ordered = /\d/.test(first[2]);
  const indent = first[1].length;
  /** @type {string[][]} */
  const items = [];
  let end = at;
  for (; end < lines.length; end++) {
    const item = ITEM.exec(lines[end]);
    if (item && item[1].length <= indent && /\d/.test(item[2]) === ordered && !RULE.test(lines[end])) {
      if (item[1].length < indent) break;
      items.push([item[3]]);
    } else if (isOfItem(lines, end, indent)) {
      items[items.length - 1].push(lines[end].slice(Math.min(indent + 2, leading(lines[end]))));
    } else break;
  }
  const children = items.map((item) => ({ tag: "li", children: inItem(item.join("\n"), depth) }));
  const start = ordered ? parseInt(first[2], 10) : undefined;
  return [{ tag: ordered ? "ol" : "ul", start, children }, end];
}

/** @param {string[]} lines @param {number} at @param {number} indent */
function isOfItem(lines, at, indent) {
  if (lines[at].trim()) return leading(lines[at]) > indent;
  return at + 1 < lines.length && Boolean(lines[at + 1].trim()) && leading(lines[at + 1]) > indent;
}

/** @param {string} line */
function leading(line) {
  return line.length - line.trimStart().length;
}

/** @param {string} text @param {number} depth @returns {Part[]} */
function inItem(text, depth) {
  const made = blocks(text, depth + 1);
  // A tight item is its text, not a paragraph of it.
  return made.flatMap((block, index) => (index === 0 && block.tag === "p" ? block.children : [block]));
}

/** @param {string[]} lines @param {number} at */
function isTable(lines, at) {
  return lines[at].includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && lines[at + 1].includes("|") && DIVIDER.test(lines[at + 1]);
}

/** @param {string[]} lines @param {number} at @returns {[Branch, number]} */
function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end++;
  const width = cells(lines[at]).length;
  const rows = [lines[at], ...lines.slice(at + 2, end)].map((line, index) => {
    const tag = index ? "td" : "th";
    const texts = [...cells(line), ...Array(width).fill("")].slice(0, width);
    return { tag: "tr", children: texts.map((text) => ({ tag, children: inline(text) })) };
  });
  return [{ tag: "table", children: rows }, end];
}

/** @param {string} line */
function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

/** @param {string[]} lines @param {number} at @returns {[Branch, number]} */
function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !begins(lines, end)) end++;
  /** @type {Part[]} */
  const children = [];
  lines.slice(at, end).forEach((line, index) => {
    if (index) children.push({ tag: "br", children: [] });
    children.push(...inline(line.trim()));
  });
  return [{ tag: "p", children }, end];
}

/** @param {string[]} lines @param {number} at */
function begins(lines, at) {
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((kind) => kind.test(lines[at])) || isTable(lines, at);
}

const INLINE = /(`+)(?!`)([\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*(?!\*)|\*(?=\S)([^*]*?\S)\*|(?<![\w_])_(?=\S)([^_]*?\S)_(?![\w_])|\[([^\]\n]*)\]\(((?:[^\s()]|\([^\s()]*\))*)\)/;

/**
 * @param {string} text
 * @param {number} [depth]
 * @returns {Part[]}
 */
export function inline(text, depth = 0) {
  /** @type {Part[]} */
  const parts = [];
  for (let rest = text; rest; ) {
    const match = depth < MOST_DEPTH ? INLINE.exec(rest) : null;
    if (!match) {
      parts.push(rest);
      break;
    }
    if (match.index) parts.push(rest.slice(0, match.index));
    parts.push(span(match, depth + 1));
    rest = rest.slice(match.index + match[0].length);
  }
  return parts;
}

/** @param {RegExpExecArray} match @param {number} depth @returns {Part} */
function span(match, depth) {
  const [whole, , code, strong, star, line, label, href] = match;
  if (code !== undefined) return { tag: "code", children: [code.trim()] };
  if (strong !== undefined) return { tag: "strong", children: inline(strong, depth) };
  const leaning = star ?? line;
  if (leaning !== undefined) return { tag: "em", children: inline(leaning, depth) };
  // Any other scheme could run a program; such a link stays the text that it is.
  if (!/^https?:\/\//i.test(href)) return whole;
  return { tag: "a", href, children: inline(label || href, depth) };
}
