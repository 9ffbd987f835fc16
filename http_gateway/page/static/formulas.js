/**
 * Formulas in Markdown, as models write them: `$x$`, `$$x$$`, `\(x\)`, `\[x\]`. A plug-in of markdown-it.
 * A dollar that could be one of money stays text, by the rule of Pandoc.
 */

/** @type {[string, string, boolean][]} what opens, what closes, whether it stands on a line of its own */
const MARKS = [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false], ["$", "$", false]];
const LONGEST = 4000; // characters; what never closes costs no more

/** @param {any} reader */
export function formulas(reader) {
  reader.inline.ruler.before("escape", "formula", within);
  reader.block.ruler.before("fence", "formula", block, { alt: ["paragraph", "reference", "blockquote", "list"] });
}

/** @param {any} state @param {boolean} silent */
function within(state, silent) {
  const { src, pos } = state;
  const mark = MARKS.find(([open]) => src.startsWith(open, pos));
  if (!mark) return false;
  const [open, close, display] = mark;
  const rest = src.slice(pos + open.length, pos + LONGEST);
  const length = rest.indexOf(close);
  const content = rest.slice(0, length);
  if (length < 1 || !content.trim()) return false;
  if (open === "$" && (/^\s|\s$|\\$|\n/.test(content) || /^\d/.test(rest.slice(length + 1)))) return false;
  if (!silent) state.push("formula", display ? "display" : "inline", 0).content = content.trim();
  state.pos += open.length + length + close.length;
  return true;
}

/** @param {any} state @param {number} start @param {number} end @param {boolean} silent */
function block(state, start, end, silent) {
  if (state.sCount[start] - state.blkIndent >= 4) return false;
  /** @param {number} line */
  const textOf = (line) => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);
  const mark = MARKS.find(([open, , display]) => display && textOf(start).startsWith(open));
  if (!mark) return false;
  const [open, close] = mark;
  let content = "";
  for (let line = start; line < end && content.length < LONGEST; line++) {
    const text = line === start ? textOf(line).slice(open.length) : textOf(line);
    const at = text.indexOf(close);
    content += `${at < 0 ? text : text.slice(0, at)}\n`;
    if (at < 0) continue;
    if (text.slice(at + close.length).trim() || !content.trim()) return false;
    if (silent) return true;
    const token = state.push("formula", "display", 0);
    token.content = content.trim();
    token.map = [start, line + 1];
    state.line = line + 1;
    return true;
  }
  return false;
}
