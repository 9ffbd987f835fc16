/** A line chart in SVG: one or two series over the last minutes. */

import { make } from "./element.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 136;
const TOP = 18;
const FOOT = 18;
const SPANS_S = [60, 120, 300];

/** @typedef {{ atS: number, values: number[] }} Point */

export class Chart {
  /**
   * @param {string} title
   * @param {string[]} names of the series, one or two
   * @param {(value: number) => string} format
   */
  constructor(title, names, format) {
    this.title = title;
    this.names = names;
    this.format = format;
    this.now = names.map((_, index) => make("span", { class: `series series-${index + 1}` }));
    this.svg = shape("svg", { role: "img", preserveAspectRatio: "none" });
    this.node = make("figure", { class: "chart" }, make("figcaption", {}, make("b", {}, title), ...this.now));
    this.node.append(this.svg);
  }

  /** @param {Point[]} points in the order of time */
  show(points) {
    const last = points.at(-1);
    const told = this.names.map((name, index) => `${name} ${this.format(last ? last.values[index] : NaN)}`);
    told.forEach((text, index) => {
      this.now[index].textContent = text;
    });
    this.svg.setAttribute("aria-label", `${this.title}: ${told.join(", ")}`);
    this.#draw(points, last ? last.atS : 0);
  }

  /** @param {Point[]} points @param {number} nowS */
  #draw(points, nowS) {
    const width = Math.max(120, this.svg.clientWidth || 320);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const top = roundedUp(Math.max(...points.flatMap((point) => point.values.filter(Number.isFinite)), 0));
    const spanS = spanOf(nowS - (points[0]?.atS ?? nowS));
    const x = (/** @type {number} */ atS) => width - ((nowS - atS) / spanS) * width;
    const y = (/** @type {number} */ value) => HEIGHT - FOOT - (value / top) * (HEIGHT - FOOT - TOP);
    const lines = [0, top / 2, top].flatMap((value) => this.#scale(value, y(value), width));
    const paths = this.names.map((_, index) => {
      const path = pathOf(points.map((point) => [x(point.atS), y(point.values[index])]));
      return shape("path", { d: path, class: `line-${index + 1}` });
    });
    const ago = shape("text", { x: "0", y: String(HEIGHT - 4) });
    ago.textContent = `${spanS / 60} min ago`;
    const now = shape("text", { x: String(width), y: String(HEIGHT - 4), "text-anchor": "end" });
    now.textContent = "now";
    this.svg.replaceChildren(...lines, ...paths, ago, now);
  }

  /** @param {number} value @param {number} y @param {number} width */
  #scale(value, y, width) {
    const line = shape("line", { x1: "0", x2: String(width), y1: String(y), y2: String(y), class: "grid-line" });
    if (!value) return [line];
    const label = shape("text", { x: "0", y: String(y - 2) });
    label.textContent = this.format(value);
    return [line, label];
  }
}

/** @param {number} ageS of the oldest point */
function spanOf(ageS) {
  return SPANS_S.find((each) => each >= ageS) ?? SPANS_S[SPANS_S.length - 1];
}

/**
 * The next of 1, 2, 2.5 and 5 times a power of ten, so that the scale seldom changes.
 * @param {number} value
 */
export function roundedUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 2.5, 5, 10].find((each) => each * power >= value) ?? 10;
  return step * power;
}

/**
 * A path through points; one that is not a number breaks it.
 * @param {number[][]} points
 */
export function pathOf(points) {
  let drawn = false;
  return points
    .map(([x, y]) => {
      if (!Number.isFinite(y)) {
        drawn = false;
        return "";
      }
      const command = `${drawn ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      // A point alone would not be seen.
      const begun = drawn ? command : `${command}h0.1`;
      drawn = true;
      return begun;
    })
    .join("");
}

/** @param {string} tag @param {Record<string, string>} attributes @returns {SVGElement} */
function shape(tag, attributes) {
  const node = /** @type {SVGElement} */ (document.createElementNS(SVG, tag));
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}
