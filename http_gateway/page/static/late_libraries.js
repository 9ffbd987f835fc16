/** Colours code and sets formulas, by libraries that are loaded with the first of each. */

import { make } from "./element.js";

const LONGEST = 100_000; // characters of code that are coloured

/** @type {Promise<typeof import("./highlight_library.js")> | null} */
let highlighting = null;
/** @type {Promise<typeof import("./formula_library.js")> | null} */
let setting = null;

/**
 * Colour code in place, once the library is there; code in an unknown language stays as it is.
 * @param {HTMLElement} code
 * @param {string} lang
 * @param {string} text
 */
export async function highlight(code, lang, text) {
  if (text.length > LONGEST) return;
  const { highlighter } = await (highlighting ??= import("./highlight_library.js"));
  if (highlighter.registered(lang)) code.replaceChildren(...highlighter.highlight(lang, text).children.map(nodeOf));
}

/**
 * Set a formula in place; one that is wrong stays the text that it is.
 * @param {HTMLElement} node
 * @param {string} text in TeX
 * @param {boolean} displayMode
 */
export async function formula(node, text, displayMode) {
  setting ??= loadFormulas();
  const { render } = await setting;
  const set = make("span");
  try {
    // Its own HTML for screens; a reader is told the text by the label. No macro may grow without end.
    render(text, set, { displayMode, output: "html", strict: "ignore", trust: false, maxExpand: 500, maxSize: 20 });
    node.replaceChildren(set);
  } catch {
    node.classList.add("wrong");
  }
}

function loadFormulas() {
  document.head.append(make("link", { rel: "stylesheet", href: "page/formulas.css" }));
  return import("./formula_library.js");
}

/** @param {any} node of highlight.js's tree @returns {Node} */
function nodeOf(node) {
  if (node.type === "text") return document.createTextNode(node.value);
  return make("span", { class: (node.properties?.className ?? []).join(" ") }, node.children.map(nodeOf));
}
