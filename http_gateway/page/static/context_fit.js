/** Whether a chat fits into its model's context, and which turns to leave out so that it does. */

import { counted } from "./completion.js";

/** @import { Conversation, Settings } from "./conversation.js" */

const ROOM = 16; // tokens that must be left for an answer
const SHARE = 0.875; // of the context that a shortened chat may take

/**
 * @param {string} model
 * @param {Conversation} conversation
 * @param {Settings} settings
 * @returns {Promise<string>} why it does not fit, in words for the user; "" if it does
 */
export async function excess(model, conversation, settings) {
  const size = await sizeOf(model, conversation, settings, conversation.left);
  if (!size || size.count + ROOM <= size.most) return "";
  const [count, most] = [size.count, size.most].map((tokens) => tokens.toLocaleString("en"));
  return (
    `This chat has ${count} tokens, and the model takes ${most} with its answer: shorten the message, begin a new ` +
    "chat, or leave out the oldest turns."
  );
}

/**
 * The fewest turns whose absence leaves room for an answer; as many as can be if none do.
 * @param {string} model
 * @param {Conversation} conversation
 * @param {Settings} settings
 */
export async function cutToFit(model, conversation, settings) {
  const cuts = conversation.cuts.filter((at) => at > conversation.left);
  let [low, high] = [0, cuts.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    const size = await sizeOf(model, conversation, settings, cuts[middle]);
    if (!size || size.count <= size.most * SHARE) high = middle;
    else low = middle + 1;
  }
  return cuts[low] ?? conversation.left;
}

/** @param {string} model @param {Conversation} conversation @param {Settings} settings @param {number} left */
function sizeOf(model, conversation, { system, tools }, left) {
  const more = tools.length ? { tools } : {};
  return counted({ model, messages: conversation.messages(system, left), ...more });
}
