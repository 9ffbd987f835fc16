/**
 * Builds elements. Text only ever becomes text nodes, so nothing that a model or a server says can
 * become markup.
 */

/** @typedef {Node | string | null | undefined | false} Child */

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, string | boolean>} [attributes] false leaves one out
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child) node.append(child);
  }
  return node;
}

/**
 * The element with this id, which index.html has.
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} kind
 * @returns {T}
 */
export function found(id, kind) {
  const node = document.getElementById(id);
  if (!(node instanceof kind)) throw new Error(`the page has no ${id}`);
  return node;
}

/**
 * Show a text in an element, or hide the element if there is none.
 * @param {HTMLElement} node
 * @param {string} text
 */
export function tell(node, text) {
  node.textContent = text;
  node.hidden = !text;
}
