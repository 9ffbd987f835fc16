/**
 * Conversation: a tree of turns, of which one path is shown and sent. Pure.
 *
 * A message that is edited and an answer that is asked for again get a sibling; the old one stays, with
 * all that was said after it, as another version.
 *
 * @typedef {{ kind: "user", text: string, files?: Attachment[] }} UserTurn
 * @typedef {{ kind: "answer", answer: Answer }} AnswerTurn
 * @typedef {{ kind: "result", id: string, name: string, text: string }} ResultTurn
 * @typedef {UserTurn | AnswerTurn | ResultTurn} Turn
 * @typedef {{ turn: Turn | null, parent: Node | null, children: Node[], chosen: number }} Node
 *   `turn`: null in the root; `chosen`: the child on the path, -1 if it ends here
 * @typedef {{ turn: Turn | { kind: "answer", answer: object }, parent: number, chosen: boolean }} SavedNode
 *   `parent`: an earlier place in the list, -1 for the root; `chosen`: whether its parent goes on with it
 * @typedef {object} Settings
 * @property {string} system
 * @property {Record<string, unknown>} sampling fields of the request that are not empty
 * @property {unknown[]} tools
 * @property {string} toolChoice
 * @property {object | null} schema of the answer, in JSON
 * @property {boolean} probabilities
 * @property {string[]} servers URLs of MCP servers whose tools are offered, too; `runs`: without asking
 * @property {boolean} runs
 */

import { Answer } from "./answer.js";
import { contentOf } from "./attachments.js";

/** @import { Attachment } from "./attachments.js" */

export class Conversation {
  /** @type {Node} */
  #root = { turn: null, parent: null, children: [], chosen: -1 };
  /** Turns at the beginning that are shown and not sent, so that the rest fits. */
  left = 0;

  /** The turns of the path that is shown. */
  get turns() {
    return this.#path().map((node) => /** @type {Turn} */ (node.turn));
  }

  /** @param {string} text @param {Attachment[]} [files] */
  say(text, files = []) {
    this.#append({ kind: "user", text, ...(files.length && { files }) });
  }

  /** @param {number} nowMs */
  begin(nowMs) {
    const answer = new Answer(nowMs);
    this.#append({ kind: "answer", answer });
    return answer;
  }

  /**
   * Give the results of the calls of the last answer, in their order.
   * @param {string[]} results
   */
  give(results) {
    this.calls.forEach(({ id, name }, index) => {
      this.#append({ kind: "result", id, name, text: results[index] ?? "" });
    });
  }

  /** Calls that wait for their results. */
  get calls() {
    const last = this.turns.at(-1);
    return last?.kind === "answer" && !last.answer.error ? last.answer.calls : [];
  }

  /**
   * End the path before this turn: the next one becomes another version of it.
   * @param {Turn} turn
   */
  retry(turn) {
    /** @type {Node} */ (this.#node(turn).parent).chosen = -1;
  }

  /**
   * Which version of its place this turn is, from 1, and of how many.
   * @param {Turn} turn
   */
  version(turn) {
    const node = this.#node(turn);
    const siblings = /** @type {Node} */ (node.parent).children;
    return { at: siblings.indexOf(node) + 1, of: siblings.length };
  }

  /**
   * Go on with an earlier (-1) or a later (1) version of this turn.
   * @param {Turn} turn
   * @param {number} step
   */
  choose(turn, step) {
    const parent = /** @type {Node} */ (this.#node(turn).parent);
    parent.chosen = Math.min(parent.children.length - 1, Math.max(0, parent.chosen + step));
  }

  /**
   * Remove one turn, and the results of its calls; what follows moves up. @param {Turn} turn
   */
  remove(turn) {
    const node = this.#node(turn);
    if (turn.kind === "answer") {
      for (const each of [...node.children]) if (each.turn?.kind === "result") this.#removeResults(each);
    }
    lift(node);
    this.left = Math.min(this.left, this.turns.length);
  }

  /**
   * Remove a version that came to nothing, with what follows it; the one before it is shown again.
   * @param {Turn} turn
   */
  drop(turn) {
    const node = this.#node(turn);
    const parent = /** @type {Node} */ (node.parent);
    parent.children.splice(parent.children.indexOf(node), 1);
    parent.chosen = parent.children.length - 1;
  }

  /**
   * A conversation of its own with the turns up to this one.
   * @param {Turn} turn
   */
  branch(turn) {
    const other = new Conversation();
    const turns = this.turns;
    for (const each of turns.slice(0, turns.indexOf(turn) + 1)) other.#append(each.kind === "answer" ? { ...each, answer: Answer.of(each.answer.saved) } : { ...each });
    other.left = Math.min(this.left, other.turns.length);
    return other;
  }

  /** Places at which turns may be left out: before each message of the user but the first. */
  get cuts() {
    return this.turns.flatMap((turn, at) => (at && turn.kind === "user" ? [at] : []));
  }

  /**
   * The body of a request for the next answer, or for the rest of the last one.
   * @param {string} model
   * @param {Settings} settings
   * @param {boolean} [goesOn] with the last answer
   */
  request(model, settings, goesOn = false) {
    /** @type {Record<string, unknown>} */
    const body = {
      ...settings.sampling,
      model,
      messages: this.messages(settings.system),
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    };
    if (settings.tools.length) Object.assign(body, { tools: settings.tools, tool_choice: settings.toolChoice });
    const json_schema = { name: "answer", schema: settings.schema };
    if (settings.schema) Object.assign(body, { response_format: { type: "json_schema", json_schema } });
    if (settings.probabilities) Object.assign(body, { logprobs: true, top_logprobs: 5 });
    if (goesOn) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
    return body;
  }

  /** @param {string} system @param {number} [left] turns to leave out */
  messages(system, left = this.left) {
    const first = system.trim() ? [{ role: "system", content: system }] : [];
    return [...first, ...this.turns.slice(left).flatMap(messagesOf)];
  }

  /** All versions, each after its parent, as JSON takes them. @returns {SavedNode[]} */
  get saved() {
    /** @type {SavedNode[]} */
    const list = [];
    /** @type {[Node, number][]} */
    const waiting = [[this.#root, -1]];
    for (let next = waiting.pop(); next; next = waiting.pop()) {
      const [node, place] = next;
      node.children.forEach((child, index) => {
        const turn = /** @type {Turn} */ (child.turn);
        const told = turn.kind === "answer" ? { kind: turn.kind, answer: turn.answer.saved } : { ...turn };
        list.push({ turn: told, parent: place, chosen: index === node.chosen });
        waiting.push([child, list.length - 1]);
      });
    }
    return list;
  }

  /** @param {SavedNode[]} list as `saved` gives it @param {number} [left] */
  static of(list, left = 0) {
    const made = new Conversation();
    /** @type {Node[]} */
    const nodes = [];
    for (const { turn, parent, chosen } of list) {
      const under = parent < 0 ? made.#root : nodes[parent];
      const whole = turn.kind === "answer" ? { kind: turn.kind, answer: Answer.of(turn.answer) } : { ...turn };
      nodes.push({ turn: /** @type {Turn} */ (whole), parent: under, children: [], chosen: -1 });
      under.children.push(nodes[nodes.length - 1]);
      if (chosen) under.chosen = under.children.length - 1;
    }
    made.left = Math.min(left, made.turns.length);
    return made;
  }

  /** @param {Turn} turn */
  #append(turn) {
    const end = this.#path().at(-1) ?? this.#root;
    end.children.push({ turn, parent: end, children: [], chosen: -1 });
    end.chosen = end.children.length - 1;
  }

  #path() {
    /** @type {Node[]} */
    const path = [];
    for (let node = this.#root.children[this.#root.chosen]; node; node = node.children[node.chosen]) path.push(node);
    return path;
  }

  /** @param {Turn} turn one of the path @returns {Node} */
  #node(turn) {
    const found = this.#path().find((node) => node.turn === turn);
    if (!found) throw new Error("the turn is not of this conversation");
    return found;
  }

  /** @param {Node} node the first of the results that follow each other */
  #removeResults(node) {
    for (const each of [...node.children]) if (each.turn?.kind === "result") this.#removeResults(each);
    lift(node);
  }
}

/** Remove a node and put its children in its place. @param {Node} node */
function lift(node) {
  const parent = /** @type {Node} */ (node.parent);
  const at = parent.children.indexOf(node);
  for (const child of node.children) child.parent = parent;
  parent.children.splice(at, 1, ...node.children);
  if (parent.chosen === at) {
    parent.chosen = node.children.length ? at + node.chosen : parent.children.length - 1;
    if (node.children.length && node.chosen < 0) parent.chosen = -1;
  } else if (parent.chosen > at) {
    parent.chosen += node.children.length - 1;
  }
}

/** @param {Turn} turn @returns {Record<string, unknown>[]} */
function messagesOf(turn) {
  if (turn.kind === "user") return [{ role: "user", content: contentOf(turn.text, turn.files ?? []) }];
  if (turn.kind === "result") return [{ role: "tool", tool_call_id: turn.id, content: turn.text }];
  // An answer that never began is no turn of the model's.
  const { answer } = turn;
  return answer.content || answer.calls.length ? [answer.message] : [];
}
