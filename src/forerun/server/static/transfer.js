// All conversations as one JSON file, and back.

import { chat, chats, now, save } from "./store.js";

const FORMAT = "forerun conversations";

/** Everything that is kept, as a file's content. */
export async function exported() {
  const parts = [];
  for (const { id } of chats()) parts.push(JSON.stringify(await chat(id)));
  return new Blob([`{"format": "${FORMAT}", "version": 1, "chats": [\n`, parts.join(",\n"), "\n]}\n"], { type: "application/json" });
}

/** Keep the conversations of such a file beside those that are there; the number of them. Throws an Error that says
 *  what is wrong. Of a turn that is here too the one that was changed last stays. */
export async function imported(file) {
  const found = await file.text().then(JSON.parse).catch(() => null);
  if (found?.format !== FORMAT || !Array.isArray(found.chats)) {
    throw new Error(`${file.name} is not a file of conversations: choose one that Export has written.`);
  }
  const given = found.chats.map(chatOf).filter(Boolean);
  for (const one of given) {
    const here = await chat(one.id);
    const mine = new Map((here?.turns ?? []).map((turn) => [turn.id, turn]));
    for (const turn of one.turns) {
      const old = mine.get(turn.id);
      if (!old) here?.turns.push(turn);
      else if (turn.changed > old.changed) Object.assign(old, turn, { parent: old.parent });
    }
    if (!(await save(here ?? one))) throw new Error("This browser has no room for all of them.");
  }
  return given.length;
}

/** A conversation with only what is shown of it, whatever the file has; null for what is none. */
function chatOf(given) {
  if (typeof given?.id !== "string" || !Array.isArray(given.turns)) return null;
  const turns = [];
  const ids = new Set();
  for (const turn of given.turns) {
    if (typeof turn?.id !== "string" || typeof turn.text !== "string" || ids.has(turn.id)) continue;
    turns.push(turnOf(turn, ids));
    ids.add(turn.id);
  }
  const [last, time] = [ids.has(given.last) ? given.last : (turns.at(-1)?.id ?? null), numberOf(given.time) ?? now()];
  return turns.length ? { id: given.id, name: textOf(given.name), pinned: given.pinned ? 1 : 0, system: textOf(given.system), time, turns, last } : null;
}

function turnOf(given, earlier) {
  const made = numberOf(given.made) ?? now();
  const thought = typeof given.thought?.text === "string" ? { text: given.thought.text, drafted: rangesOf(given.thought) } : undefined;
  return {
    id: given.id,
    parent: earlier.has(given.parent) ? given.parent : null,
    role: given.role === "user" ? "user" : "assistant",
    text: given.text,
    ...(given.model ? { model: textOf(given.model) } : {}),
    drafted: rangesOf(given),
    thought,
    ...listed("files", given, ["name", "text"]),
    ...listed("calls", given, ["id", "name", "arguments"], ["result"]),
    timings: timingsOf(given.timings),
    reason: textOf(given.reason) || null,
    error: textOf(given.error) || null,
    made,
    changed: numberOf(given.changed) ?? made,
  };
}

const textOf = (value) => (typeof value === "string" ? value : "");
const numberOf = (value) => (Number.isFinite(value) ? value : null);

/** A turn's files or calls, where all that is needed of each is text. */
function listed(name, given, needed, others = []) {
  const found = Array.isArray(given[name]) ? given[name] : [];
  if (!found.length || !found.every((one) => needed.every((field) => typeof one?.[field] === "string"))) return {};
  const kept = (one) => [...needed, ...others].filter((field) => typeof one[field] === "string").map((field) => [field, one[field]]);
  return { [name]: found.map((one) => Object.fromEntries(kept(one))) };
}

function rangesOf({ drafted }) {
  const isRange = (one) => Array.isArray(one) && one.length === 2 && one.every(Number.isInteger);
  return Array.isArray(drafted) && drafted.every(isRange) ? drafted : [];
}

/** The figures of an answer, where all that are shown are numbers. */
function timingsOf(given) {
  const shown = ["predicted_n", "predicted_per_second", "passes", "tokens_per_pass", "prompt_n", "cache_n"];
  return given && shown.every((name) => Number.isFinite(given[name])) ? given : null;
}
