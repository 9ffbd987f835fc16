/** The page: its views, and what connects them. */

import { key } from "./api.js";
import { CellView } from "./cell_view.js";
import { CellWatch } from "./cell_watch.js";
import { ChatView } from "./chat_view.js";
import { found } from "./element.js";
import { KeyDialog } from "./key_dialog.js";
import { PublishDialogs } from "./publish_dialogs.js";

/** @import { Cell } from "./cell_figures.js" */

const VIEWS = ["chat", "cell"];
const GENERATES = "lm.generate";

const state = found("link-state", HTMLElement);
const chat = new ChatView({ unauthorized: (why) => keys.open(why) });
const cell = new CellView({ unpublish: (model) => dialogs.unpublish(model) });
const keys = new KeyDialog({ changed: () => void watch.look() });
const dialogs = new PublishDialogs({ changed: () => void watch.look() });
const watch = new CellWatch({
  seen,
  failed: (error) => {
    tellState(error.message, "trouble");
    if (error.status === 401) keys.open(key() ? error.message : "");
  },
});

/** @param {Cell} now */
function seen(now) {
  tellState(now.admin === "ok" ? "live" : "admin server away", now.admin === "ok" ? "good" : "busy");
  found("cell-name", HTMLElement).textContent = now.cell;
  document.title = now.cell ? `sax ${now.cell}` : "sax";
  dialogs.cell = now.cell;
  chat.offer(now.models.filter(answers).map((model) => model.model));
  cell.take(now);
}

/** @param {Cell["models"][number]} model */
function answers(model) {
  // One that is scaled to none wakes for the first request.
  const wakes = !model.wanted_replicas && Boolean(model.scaling_reason);
  return (model.ready_replicas > 0 || wakes) && (!model.methods.length || model.methods.includes(GENERATES));
}

/** @param {string} text @param {string} kind */
function tellState(text, kind) {
  if (state.textContent !== text) state.textContent = text;
  state.className = kind;
}

/** @param {string} name @param {boolean} [focus] */
function open(name, focus = false) {
  for (const each of VIEWS) {
    const tab = found(`tab-${each}`, HTMLButtonElement);
    tab.setAttribute("aria-selected", String(each === name));
    tab.tabIndex = each === name ? 0 : -1;
    found(`view-${each}`, HTMLElement).hidden = each !== name;
    if (focus && each === name) tab.focus();
  }
  history.replaceState(null, "", name === "chat" ? location.pathname : `#${name}`);
  cell.draw();
}

for (const [index, name] of VIEWS.entries()) {
  const tab = found(`tab-${name}`, HTMLButtonElement);
  tab.addEventListener("click", () => open(name));
  tab.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") open(VIEWS[1 - index], true);
  });
}

found("new-chat", HTMLButtonElement).addEventListener("click", () => startChat());
found("help-open", HTMLButtonElement).addEventListener("click", () => found("help-dialog", HTMLDialogElement).showModal());
const settings = found("settings-open", HTMLButtonElement);
settings.addEventListener("click", () => showSettings(settings.getAttribute("aria-expanded") !== "true"));

/** @param {boolean} shown on narrow screens, where it covers the chat */
function showSettings(shown) {
  settings.setAttribute("aria-expanded", String(shown));
  found("settings", HTMLElement).classList.toggle("open", shown);
}

function startChat() {
  open("chat");
  chat.clear();
  chat.prompt.focus();
}

/** @param {EventTarget | null} target */
function isWriting(target) {
  return target instanceof HTMLElement && target.matches("input, textarea, select");
}

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey) return;
  if (event.key === "Escape") {
    if (chat.busy) chat.stop();
    else showSettings(false);
  } else if (event.altKey && VIEWS[Number(event.key) - 1]) {
    open(VIEWS[Number(event.key) - 1], true);
    event.preventDefault();
  } else if (event.altKey && event.key.toLowerCase() === "n") {
    startChat();
    event.preventDefault();
  } else if (!event.altKey && !isWriting(event.target) && event.key === "/") {
    open("chat");
    chat.prompt.focus();
    event.preventDefault();
  } else if (!event.altKey && !isWriting(event.target) && event.key === "?") {
    found("help-dialog", HTMLDialogElement).showModal();
  }
});

open(VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat");
chat.prompt.focus();
void watch.look();
