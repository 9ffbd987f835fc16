/** Keeps chats in the browser's IndexedDB; in memory where the browser allows none. */

/** @import { Chat } from "./saved_chats.js" */

const NAME = "sax";
const CHATS = "chats";

export class ChatStore {
  /** @type {Map<string, Chat>} */
  #memory = new Map();

  constructor() {
    this.opened = opened();
  }

  /** False if what is written is lost with the tab. */
  async lasts() {
    return (await this.opened) !== null;
  }

  /** @returns {Promise<Chat[]>} */
  async all() {
    const database = await this.opened;
    if (!database) return [...this.#memory.values()];
    return done(database.transaction(CHATS).objectStore(CHATS).getAll());
  }

  /** @param {Chat} chat */
  async put(chat) {
    const database = await this.opened;
    if (!database) this.#memory.set(chat.id, chat);
    else await done(database.transaction(CHATS, "readwrite").objectStore(CHATS).put(chat));
  }

  /** @param {string} id */
  async remove(id) {
    const database = await this.opened;
    if (!database) this.#memory.delete(id);
    else await done(database.transaction(CHATS, "readwrite").objectStore(CHATS).delete(id));
  }
}

/** @returns {Promise<IDBDatabase | null>} */
function opened() {
  return new Promise((resolve) => {
    try {
      const asked = indexedDB.open(NAME, 1);
      asked.onupgradeneeded = () => asked.result.createObjectStore(CHATS, { keyPath: "id" });
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = () => resolve(null);
    } catch {
      resolve(null); // forbidden by the browser's settings
    }
  });
}

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
