/** Reads server-sent events from a stream of text that may be cut anywhere. */

export class EventReader {
  #rest = "";
  /** @type {string[]} */
  #data = [];

  /**
   * Take the next piece; return the data of every event that it completes.
   * @param {string} text
   * @returns {string[]}
   */
  push(text) {
    this.#rest += text;
    /** @type {string[]} */
    const events = [];
    for (let line = this.#line(); line !== null; line = this.#line()) {
      if (line !== "") {
        this.#take(line);
      } else if (this.#data.length) {
        events.push(this.#data.join("\n"));
        this.#data = [];
      }
    }
    return events;
  }

  /** The next whole line; null if there is none yet. */
  #line() {
    const end = this.#rest.search(/[\r\n]/);
    // A carriage return at the very end may be half of a line's end.
    if (end < 0 || (this.#rest[end] === "\r" && end === this.#rest.length - 1)) return null;
    const line = this.#rest.slice(0, end);
    const wide = this.#rest.startsWith("\r\n", end) ? 2 : 1;
    this.#rest = this.#rest.slice(end + wide);
    return line;
  }

  /** @param {string} line */
  #take(line) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.#data.push(value);
  }
}
