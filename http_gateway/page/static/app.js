/** The page: its views, and what connects them. */

import { key } from "./api.js";
import { CellView } from "./cell_view.js";
import { CellWatch } from "./cell_watch.js";
import { ChatView } from "./chat_view.js";
import { ChatsView } from "./chats_view.js";
import { copyButton } from "./clipboard.js";
import { CompareView } from "./compare_view.js";
import { found, make, tell } from "./element.js";
import { KeyDialog } from "./key_dialog.js";
import { PublishDialogs } from "./publish_dialogs.js";
import { asCurl, asPython } from "./shared_request.js";
import { VersionsDialog } from "./versions_dialog.js";

/** @import { Cell } from "./cell_figures.js" */

const VIEWS = ["chat", "compare", "cell"];
const GENERATES = "lm.generate";

const state = found("link-state", HTMLElement);
const chat = new ChatView({
  unauthorized: (why) => keys.open(why),
  changed: (kept) => {
    void chats.keep(kept);
    chats.mark(chat.id);
  },
});
const chats = new ChatsView({
  open: (kept) => {
    if (kept.id !== chat.id) chat.open(kept);
    chats.mark(kept.id);
    showChats(false);
    chat.composer.focus();
  },
  renamed: (kept) => kept.id === chat.id && chat.rename(kept.name),
  removed: (kept) => {
    if (kept.id !== chat.id) return;
    chat.forget();
    startChat();
  },
});
const compare = new CompareView({
  unauthorized: (why) => keys.open(why),
  branched: (conversation, model) => {
    open("chat");
    chat.take(conversation, model);
  },
});
const cell = new CellView({
  unpublish: (model) => dialogs.unpublish(model),
  versions: (model, mayChange) => void versions.open(model, mayChange),
});
const keys = new KeyDialog({ changed: () => void watch.look() });
const dialogs = new PublishDialogs({ changed: () => void watch.look() });
const versions = new VersionsDialog({ changed: () => void watch.look() });
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
  const ready = now.models.filter(answers).map((model) => model.model);
  chat.model.offer(ready);
  compare.offer(ready);
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

/** The view that is shown. */
function shown() {
  return VIEWS.find((name) => !found(`view-${name}`, HTMLElement).hidden) ?? "chat";
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
    const step = { ArrowRight: 1, ArrowLeft: VIEWS.length - 1 }[event.key];
    if (step) open(VIEWS[(index + step) % VIEWS.length], true);
  });
}

for (const button of document.querySelectorAll("dialog [data-close]")) {
  button.addEventListener("click", () => button.closest("dialog")?.close());
}
found("new-chat", HTMLButtonElement).addEventListener("click", () => startChat());
found("help-open", HTMLButtonElement).addEventListener("click", () => found("help-dialog", HTMLDialogElement).showModal());
found("share-open", HTMLButtonElement).addEventListener("click", () => void share());
const showSettings = cover("settings");
const showChats = cover("chats");

/**
 * The switch of a panel that covers the chat on narrow screens.
 * @param {string} name of the panel, and of its button with "-open"
 * @returns {(shown: boolean) => void}
 */
function cover(name) {
  const button = found(`${name}-open`, HTMLButtonElement);
  /** @param {boolean} shown */
  const show = (shown) => {
    button.setAttribute("aria-expanded", String(shown));
    found(name, HTMLElement).classList.toggle("open", shown);
  };
  button.addEventListener("click", () => show(button.getAttribute("aria-expanded") !== "true"));
  return show;
}

function startChat() {
  open("chat");
  chat.clear();
  chats.mark("");
  chat.composer.focus();
}

/** Show the next request as curl and as Python. */
async function share() {
  const texts = found("share-texts", HTMLElement);
  texts.replaceChildren();
  tell(found("share-trouble", HTMLElement), "");
  found("share-dialog", HTMLDialogElement).showModal();
  try {
    const body = await chat.nextRequest();
    const withKey = Boolean(key());
    const made = { curl: asCurl(location.origin, body, withKey), Python: asPython(location.origin, body, withKey) };
    for (const [name, text] of Object.entries(made)) {
      const head = make("figcaption", {}, name, copyButton(() => text, "copy"));
      texts.append(make("figure", { class: "block" }, head, make("pre", { tabindex: "0", "aria-label": name }, make("code", {}, text))));
    }
  } catch (error) {
    tell(found("share-trouble", HTMLElement), error instanceof Error ? error.message : String(error));
  }
}

/** @param {EventTarget | null} target */
function isWriting(target) {
  return target instanceof HTMLElement && target.matches("input, textarea, select");
}

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey) return;
  if (event.key === "Escape") {
    if (chat.busy) chat.stop();
    if (compare.busy) compare.stop();
    showSettings(false);
    showChats(false);
  } else if (event.altKey && VIEWS[Number(event.key) - 1]) {
    open(VIEWS[Number(event.key) - 1], true);
    event.preventDefault();
  } else if (event.altKey && event.key.toLowerCase() === "n") {
    startChat();
    event.preventDefault();
  } else if (event.altKey && event.key.toLowerCase() === "m") {
    if (shown() === "cell") open("chat");
    (shown() === "compare" ? compare.columns[0] : chat).model.focus();
    event.preventDefault();
  } else if (event.altKey && event.key.toLowerCase() === "f") {
    if (shown() === "chat") showChats(true);
    found(shown() === "cell" ? "cell-filter" : "chats-search", HTMLInputElement).focus();
    event.preventDefault();
  } else if (!event.altKey && !isWriting(event.target) && event.key === "/") {
    if (shown() === "cell") open("chat");
    (shown() === "compare" ? compare : chat).composer.focus();
    event.preventDefault();
  } else if (!event.altKey && !isWriting(event.target) && event.key === "?") {
    found("help-dialog", HTMLDialogElement).showModal();
  }
});

open(VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat");
chat.composer.focus();
void watch.look();
