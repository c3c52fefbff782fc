// What the browser keeps: conversations, one entry each so that two tabs do not overwrite each other, and settings.

const CHAT = "forerun.chat.";
const SETTINGS = "forerun.settings";

/** A new conversation; it is kept once it has a turn. */
export function newChat(system = "") {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), system, turns: [], time: Date.now() };
}

/** All conversations, the latest first. */
export function chats() {
  return Object.keys(localStorage)
    .filter((name) => name.startsWith(CHAT))
    .map((name) => read(name))
    .filter((chat) => chat?.id && Array.isArray(chat.turns))
    .sort((a, b) => b.time - a.time);
}

/** One conversation; null if it is not kept. */
export function chat(id) {
  const found = id && read(CHAT + id);
  return found?.id && Array.isArray(found.turns) ? found : null;
}

/** What this tab keeps over a reload: the open conversation, and what is written but not sent. */
export const here = {
  get: (name) => sessionStorage.getItem(`forerun.${name}`),
  set: (name, value) => sessionStorage.setItem(`forerun.${name}`, value),
};

/** Keep a conversation. Where the browser has no more room, the oldest others go; false if it does not fit alone. */
export function save(chat) {
  for (;;) {
    try {
      localStorage.setItem(CHAT + chat.id, JSON.stringify(chat));
      return true;
    } catch {
      const oldest = chats().filter((each) => each.id !== chat.id).at(-1);
      if (!oldest) return false;
      remove(oldest);
    }
  }
}

export function remove(chat) {
  localStorage.removeItem(CHAT + chat.id);
}

/** What a conversation is called in the list. */
export function title(chat) {
  const first = chat.turns.find((turn) => turn.role === "user")?.text ?? "";
  return first.trim().replace(/\s+/g, " ").slice(0, 80) || "New chat";
}

export function settings() {
  return { drafting: true, tint: true, system: "", sampling: {}, ...read(SETTINGS) };
}

export function saveSettings(values) {
  localStorage.setItem(SETTINGS, JSON.stringify(values));
}

function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}
