/** Tools of the MCP servers that the operator of the gateway allows: what they offer, and calls of them. */

import { ask } from "./api.js";

/** @import { ToolCall } from "./answer.js" */
/** @import { Settings } from "./conversation.js" */

/** Which tools each server offers, as long as the page is open. @type {Map<string, Promise<any[]>>} */
const offers = new Map();
/** The names of the tools that requests had of each server. @type {Map<string, Set<string>>} */
const named = new Map();

/** @returns {Promise<string[]>} the URLs of the servers */
export async function mcpServers() {
  return (await (await ask("mcp/servers")).json()).servers;
}

/** @param {string} url @returns {Promise<any[]>} the server's tools, as it lists them */
export function offered(url) {
  const asked = offers.get(url) ?? toolsOf(url);
  offers.set(url, asked);
  asked.catch(() => offers.delete(url)); // the next request tries again
  return asked;
}

/** @param {string} url */
async function toolsOf(url) {
  return (await (await ask("mcp/tools", { body: { server_url: url } })).json()).tools;
}

/**
 * The settings with the tools of the servers that they name.
 * @param {Settings} settings
 * @returns {Promise<Settings>}
 * @throws {Error} in words for the user
 */
export async function withMcpTools(settings) {
  const tools = [...settings.tools];
  const names = new Set(tools.map((/** @type {any} */ tool) => tool?.function?.name));
  for (const url of settings.servers) {
    const theirs = await offered(url);
    named.set(url, new Set(theirs.map(({ name }) => name)));
    for (const { name, description, inputSchema: parameters } of theirs) {
      if (names.has(name)) throw new Error(`Two tools are named ${name}: choose one server, or rename yours.`);
      names.add(name);
      tools.push({ type: "function", function: { name, description, parameters } });
    }
  }
  return { ...settings, tools };
}

/**
 * The server that a call goes to; "": none, a person answers it.
 * @param {string} name of the tool
 * @param {string[]} servers that the settings name
 */
export function serverOf(name, servers) {
  return servers.find((url) => named.get(url)?.has(name)) ?? "";
}

/**
 * Make a call.
 * @param {string} url of the server
 * @param {ToolCall} call
 * @param {AbortSignal} [signal]
 * @returns {Promise<string>} the result, or what went wrong, as the model is to read it
 */
export async function made(url, { name, arguments: given }, signal) {
  try {
    const reply = await ask("mcp/call", { body: { server_url: url, name, arguments: given || "{}" }, signal });
    const { text, failed } = await reply.json();
    return failed ? `Error: ${text}` : text;
  } catch (error) {
    return `Error: ${error instanceof Error ? error.message : error}`;
  }
}
