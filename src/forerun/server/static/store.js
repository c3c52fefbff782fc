// What the browser keeps: conversations, an entry each, and settings. Nothing goes to make room for something new.
// Tabs that have one conversation open merge it turn by turn: what one has added or removed, the others take over.

import { goTo, path } from "./branches.js";

const CHAT = "forerun.chat.";
const SETTINGS = "forerun.settings";
/** By conversation: the ids of the turns that this tab has seen in what is kept. */
const known = new WeakMap();

/** A new conversation; it is kept once it has a turn. */
export function newChat(system = "") {
  return { id: newId(), system, turns: [], last: null, time: Date.now() };
}

/** A new turn: `role` and its other fields. */
export function newTurn(fields) {
  return { id: newId(), changed: Date.now(), ...fields };
}

function newId() {
  return crypto.getRandomValues(new Uint32Array(2)).join("-");
}

/** All conversations, the latest first. */
export function chats() {
  return Object.keys(localStorage)
    .filter((name) => name.startsWith(CHAT))
    .map((name) => readChat(name))
    .filter(Boolean)
    .sort((a, b) => b.time - a.time);
}

/** One conversation; null if it is not kept. */
export function chat(id) {
  return id ? readChat(CHAT + id) : null;
}

function readChat(name) {
  const found = read(name);
  if (!found?.id || !Array.isArray(found.turns)) return null;
  for (const [at, turn] of found.turns.entries()) {
    turn.id ??= `turn-${at}`; // kept before turns had ids, and before they had parents
    if (turn.parent === undefined) turn.parent = found.turns[at - 1]?.id ?? null;
  }
  const ids = new Set(found.turns.map((turn) => turn.id));
  for (const turn of found.turns) {
    if (!ids.has(turn.parent)) turn.parent = null; // another tab has taken its question out
  }
  if (found.last === undefined) goTo(found, null);
  known.set(found, ids);
  return found;
}

/** What this tab keeps over a reload: the open conversation, and what is written but not sent. */
export const here = {
  get: (name) => sessionStorage.getItem(`forerun.${name}`),
  set: (name, value) => put(sessionStorage, `forerun.${name}`, value),
};

/** Keep a conversation, merged with what other tabs have kept of it. False, and no change, where there is no room. */
export function save(chat) {
  const turns = merged(chat);
  if (!put(localStorage, CHAT + chat.id, JSON.stringify({ ...chat, turns }))) return false;
  take(chat, turns);
  return true;
}

/** Merge into a conversation what another tab has kept of it, if storage event `event` is about it.
 *  `follows`: what is shown there is shown here. */
export function refresh(chat, event, follows) {
  if (event.key !== CHAT + chat.id || !event.newValue) return false;
  take(chat, merged(chat));
  if (follows) goTo(chat, JSON.parse(event.newValue).last);
  return true;
}

function take(chat, turns) {
  chat.turns = turns;
  known.set(chat, new Set(turns.map((turn) => turn.id)));
  if (!known.get(chat).has(chat.last)) goTo(chat, null); // it is gone
}

/** The turns that are kept, without those that this tab has removed and with those that it has added. */
function merged(chat) {
  const { turns } = chat;
  const theirs = readChat(CHAT + chat.id)?.turns;
  if (!theirs) return [...turns];
  const seen = known.get(chat) ?? new Set();
  const mine = new Map(turns.map((turn) => [turn.id, turn]));
  const there = new Set(theirs.map((turn) => turn.id));
  const kept = theirs.filter((turn) => mine.has(turn.id) || !seen.has(turn.id));
  const added = turns.filter((turn) => !there.has(turn.id) && !seen.has(turn.id));
  return [...kept.map((turn) => later(mine.get(turn.id), turn)), ...added];
}

/** Of one turn in two tabs the one that was changed last; ours stays the same object. */
function later(ours, theirs) {
  if (!ours) return theirs;
  return (theirs.changed ?? 0) > (ours.changed ?? 0) ? Object.assign(ours, theirs) : ours;
}

export function remove(chat) {
  localStorage.removeItem(CHAT + chat.id);
}

/** What a conversation is called in the list. */
export function title(chat) {
  const first = path(chat).find((turn) => turn.role === "user")?.text ?? "";
  return first.trim().replace(/\s+/g, " ").slice(0, 80) || "New chat";
}

export function settings() {
  return { drafting: true, tint: true, system: "", sampling: {}, ...read(SETTINGS) };
}

export function saveSettings(values) {
  return put(localStorage, SETTINGS, JSON.stringify(values));
}

/** Keep a value; false where the browser has no room for it. */
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
