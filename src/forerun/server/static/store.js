// What the browser keeps: settings in localStorage, which is read before anything is shown; conversations in IndexedDB,
// each as a head, which the list needs, and an entry for each turn. Nothing goes to make room for something new.
// Tabs that have one conversation open merge it turn by turn: what one has added or removed, the others take over.

import { goTo, path } from "./branches.js";
import { whole } from "./files.js";

const BEFORE = "forerun.chat."; // conversations were in localStorage under these names
const SETTINGS = "forerun.settings";
const MANY = 200; // turns that a search reads at once
const AROUND = 40; // letters
const FULL =
  "This browser has no room left: what is new here is not kept. Deleting conversations makes room; none is deleted by itself.";
const NOWHERE = "This browser keeps nothing for this page: conversations end with it.";

let db = null;
let latest = 0;
const heads = new Map();
/** By conversation: its turns that are kept, with the time of their last change. */
const known = new WeakMap();
const tabs = new BroadcastChannel("forerun.chats");

/** Read what is kept. `onchange(id)` is called when another tab has changed a conversation. */
export async function start(onchange) {
  try {
    db = await opened();
    await takeOver();
    for (const head of await settled(db.transaction("heads").objectStore("heads").getAll())) heads.set(head.id, head);
  } catch {
    db = null;
  }
  tabs.onmessage = async ({ data: id }) => {
    const head = db && (await settled(db.transaction("heads").objectStore("heads").get(id)));
    if (head) heads.set(id, head);
    else heads.delete(id);
    onchange(id);
  };
}

function opened() {
  const request = indexedDB.open("forerun", 1);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("heads", { keyPath: "id" });
    request.result.createObjectStore("turns", { keyPath: ["chat", "id"] });
  };
  return settled(request);
}

/** Put what earlier versions kept in localStorage where conversations are now. */
async function takeOver() {
  for (const name of Object.keys(localStorage).filter((each) => each.startsWith(BEFORE))) {
    const found = read(name);
    const isOne = found?.id && Array.isArray(found.turns);
    for (const [at, turn] of isOne ? found.turns.entries() : []) {
      turn.id ??= `turn-${at}`; // kept before turns had ids, and before they had parents
      if (turn.parent === undefined) turn.parent = found.turns[at - 1]?.id ?? null;
      turn.made ??= at;
      turn.changed ??= at;
    }
    if (isOne && !(await save(mended(found)))) return;
    localStorage.removeItem(name);
  }
}

function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Write in one transaction, also where the page is being left; false, and no change, where there is no room. */
async function written(work) {
  try {
    const transaction = db.transaction(["heads", "turns"], "readwrite");
    const done = new Promise((resolve) => {
      transaction.oncomplete = () => resolve(true);
      transaction.onabort = () => resolve(false);
    });
    work(transaction.objectStore("heads"), transaction.objectStore("turns"));
    transaction.commit();
    return await done;
  } catch {
    return false;
  }
}

/** A new conversation; it is kept once it has a turn. */
export function newChat(system = "") {
  return { id: newId(), system, turns: [], last: null, time: Date.now() };
}

/** A new turn: `role` and its other fields. */
export function newTurn(fields) {
  const made = now();
  return { id: newId(), made, changed: made, ...fields };
}

/** The time, later than all that this tab was told before. */
export function now() {
  latest = Math.max(Date.now(), latest + 1);
  return latest;
}

function newId() {
  return crypto.getRandomValues(new Uint32Array(2)).join("-");
}

/** The heads of all conversations, those that are pinned and then the latest first: {id, title, time, name, pinned}. */
export function chats() {
  return [...heads.values()].sort((a, b) => (b.pinned ?? 0) - (a.pinned ?? 0) || b.time - a.time);
}

/** One conversation; null if it is not kept. */
export async function chat(id) {
  if (!heads.has(id)) return null;
  return mended({ ...heads.get(id), turns: await turnsOf(id) });
}

async function turnsOf(id) {
  const found = await settled(db.transaction("turns").objectStore("turns").getAll(all(id)));
  return found.sort((a, b) => a.made - b.made);
}

const all = (id) => IDBKeyRange.bound([id], [id, []]);

/** A conversation of which turns may be missing, in the form in which it is shown. */
function mended(chat) {
  const ids = new Set(chat.turns.map((turn) => turn.id));
  for (const turn of chat.turns) {
    if (!ids.has(turn.parent)) turn.parent = null; // another tab has taken its question out
  }
  if (!ids.has(chat.last)) goTo(chat, null);
  if (heads.has(chat.id)) known.set(chat, changes(chat.turns));
  return chat;
}

const changes = (turns) => new Map(turns.map((turn) => [turn.id, turn.changed]));

/** What this tab keeps over a reload: the open conversation, and what is written but not sent. */
export const here = {
  get: (name) => sessionStorage.getItem(`forerun.${name}`),
  set: (name, value) => put(sessionStorage, `forerun.${name}`, value),
};

/** Keep what is new in a conversation. False, and no change, where there is no room: `trouble()` says so. */
export async function save(chat) {
  const { turns, ...rest } = chat;
  const [head, before, after] = [{ ...rest, title: title(chat) }, known.get(chat) ?? new Map(), changes(turns)];
  known.set(chat, after);
  const isKept = await written((headStore, turnStore) => {
    headStore.put(head);
    for (const turn of turns) {
      if (before.get(turn.id) !== turn.changed) turnStore.put({ ...turn, chat: chat.id });
    }
    for (const id of before.keys()) if (!after.has(id)) turnStore.delete([chat.id, id]);
  });
  if (isKept) {
    heads.set(chat.id, head);
    tabs.postMessage(chat.id);
  } else {
    known.delete(chat); // the next time all of it is written
  }
  return isKept;
}

/** Why something was not kept. */
export const trouble = () => (db ? FULL : NOWHERE);

/** Merge into a conversation what another tab has kept of it. `follows`: what is shown there is shown here. */
export async function merge(chat, follows) {
  const before = known.get(chat) ?? new Map();
  const theirs = await turnsOf(chat.id);
  const head = heads.get(chat.id);
  if (!head) return known.delete(chat); // it is deleted there; what is kept here from now on is all of it
  const mine = new Map(chat.turns.map((turn) => [turn.id, turn]));
  const there = changes(theirs);
  const added = chat.turns.filter((turn) => !there.has(turn.id) && !before.has(turn.id));
  const [{ name, pinned, system }, last] = [head, follows ? head.last : chat.last];
  const turns = [...theirs.map((turn) => later(mine.get(turn.id), turn)), ...added];
  mended(Object.assign(chat, { name, pinned, system, last, turns: turns.sort((a, b) => a.made - b.made) }));
  known.set(chat, there);
}

/** Of one turn in two tabs the one that was changed last; ours stays the same object. */
function later(ours, theirs) {
  if (!ours) return theirs;
  return theirs.changed > ours.changed ? Object.assign(ours, theirs) : ours;
}

export async function remove(id) {
  heads.delete(id);
  await written((headStore, turnStore) => {
    headStore.delete(id);
    turnStore.delete(all(id));
  });
  tabs.postMessage(id);
}

/** Note what the user says of a conversation: `name`, none is its first question; `pinned`, 1 or 0. */
export async function note(id, fields) {
  const head = { ...heads.get(id), ...fields };
  heads.set(id, head);
  await written((headStore) => headStore.put(head));
  tabs.postMessage(id);
}

/** Where a text stands: by conversation what is around it, "" where it is in the name alone. */
export async function search(text) {
  const [found, sought] = [new Map(), text.toLowerCase()];
  for (const head of heads.values()) if (called(head).toLowerCase().includes(sought)) found.set(head.id, "");
  for (let from = null; db; ) {
    const range = from && IDBKeyRange.lowerBound(from, true);
    const turns = await settled(db.transaction("turns").objectStore("turns").getAll(range, MANY));
    for (const turn of turns) {
      const text = found.get(turn.chat) ? "" : whole(turn);
      const at = text.toLowerCase().indexOf(sought);
      if (at >= 0) found.set(turn.chat, text.slice(Math.max(0, at - AROUND), at + sought.length + AROUND));
    }
    if (turns.length < MANY) break;
    from = [turns.at(-1).chat, turns.at(-1).id];
  }
  return found;
}

/** What a conversation is called in the list. */
export const called = (head) => head.name || head.title || "New chat";

/** The beginning of its first question. */
export function title(chat) {
  const first = path(chat).find((turn) => turn.role === "user");
  return (first?.text || (first?.files ?? []).map((file) => file.name).join(", ")).slice(0, 1000).trim().replace(/\s+/g, " ").slice(0, 80);
}

export function settings() {
  return { drafting: true, tint: true, system: "", sampling: {}, ...read(SETTINGS) };
}

export function saveSettings(values) {
  put(localStorage, SETTINGS, JSON.stringify(values));
}

/** False where there is no room. */
function put(storage, name, value) {
  try {
    storage.setItem(name, value);
    return true;
  } catch {
    return false;
  }
}

function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}
