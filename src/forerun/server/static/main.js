// The page: conversations at the side, one of them in the middle, a field to write in.

import { body, follow as receive } from "./receive.js";
import * as branches from "./branches.js";
import { Composer } from "./composer.js";
import { make } from "./render.js";
import { askKey, Served } from "./served.js";
import { Settings } from "./settings.js";
import { listen } from "./shortcuts.js";
import { Side } from "./side.js";
import * as store from "./store.js";
import { Tools } from "./tools.js";
import { TurnView } from "./turns.js";

const byId = (id) => document.getElementById(id);
const log = byId("log");
const EXAMPLES = [
  "What is photosynthesis?",
  "Give me five tips for better sleep.",
  "Write a Python function that reverses a string, and explain it.",
];

const BUSY = "An answer is coming: wait for its end, or press Esc to stop it, then send.";

let chat = store.newChat();
let views = [];
const running = new Map(); // by a conversation's id, while an answer to it comes: {controller, chat, turn, view}
const unread = new Set(); // ids of conversations to which an answer has come while another one was open
const settings = new Settings(applySettings, {
  get: () => chat.system ?? "",
  set: (text) => {
    chat.system = text;
    if (chat.turns.length) store.save(chat);
  },
});

const served = new Served(settings, () => {
  tellFill();
  settings.tellDrafter(served.chosen?.drafter);
  tools.connect();
});
const tools = new Tools(settings, () => {
  const names = [...tools.offered().keys()];
  byId("offered").textContent = names.length ? `The model may ask to call: ${names.join(", ")}` : "";
  show();
});

const composer = new Composer({
  tell: tellTrouble,
  send: (text, files) => {
    const isFree = !running.has(chat.id);
    if (isFree) send(text, files);
    else tellTrouble(BUSY);
    return isFree;
  },
});

const side = new Side({
  open: async (id) => {
    document.body.classList.remove("side-open");
    if (id === chat.id) return;
    byId("chats").dataset.wanted = id;
    const found = running.get(id)?.chat ?? (await store.chat(id));
    if (found && byId("chats").dataset.wanted === id) open(found);
  },
  remove: async (id) => {
    const coming = running.get(id);
    if (coming) coming.chat.turns.length = 0; // what still comes for it is not kept
    stop(id);
    await store.remove(id);
    if (id === chat.id) open(store.newChat(settings.values.system));
    else list();
  },
  note: (id, fields) => {
    for (const one of [chat, running.get(id)?.chat]) if (one?.id === id) Object.assign(one, fields);
    store.note(id, fields);
    list();
  },
  mark: (id) => {
    if (running.has(id)) return { kind: "coming", text: "An answer is coming" };
    return unread.has(id) ? { kind: "unread", text: "A new answer" } : null;
  },
  tell: tellTrouble,
  changed: () => follow(chat.id),
});

function applySettings() {
  byId("shade").setAttribute("aria-pressed", String(settings.values.tint));
  document.body.classList.toggle("untinted", !settings.values.tint);
}

/** Show another conversation; an answer that comes goes on, and is kept. */
function open(next) {
  chat = next;
  byId("chats").dataset.wanted = chat.id;
  unread.delete(chat.id);
  store.here.set("chat", chat.id);
  refresh();
  show();
  tellTrouble("");
  list();
  toEnd();
  document.body.classList.remove("side-open");
  if (matchMedia("(pointer: fine)").matches) composer.focus(); // elsewhere a keyboard would cover the page
}

/** Show the turns as they are; those that are shown keep their places and what is open in them. */
function show() {
  const shown = new Map(views.map((view) => [view.turn, view]));
  const coming = running.get(chat.id);
  if (coming) shown.set(coming.turn, coming.view);
  views = branches.path(chat).map((turn) => shown.get(turn) ?? viewOf(turn));
  const [list, elements] = [byId("turns"), views.map((view) => view.element)];
  if (elements.some((each, at) => each !== list.children[at]) || elements.length < list.children.length) {
    list.replaceChildren(...elements);
  }
  for (const view of views) view.update();
  byId("welcome").hidden = views.length > 0;
  tellFill();
}

/** Say how full the context is after the last answer. */
function tellFill() {
  const last = branches.path(chat).findLast((turn) => turn.timings)?.timings;
  const room = served.chosen?.max_model_len;
  const used = last ? last.cache_n + last.prompt_n + last.predicted_n : 0;
  byId("fill").textContent = used && room ? `${used.toLocaleString("en")} of ${room.toLocaleString("en")}` : "";
}

function viewOf(turn) {
  return new TurnView(turn, {
    edit: (text) => edit(turn, text),
    regenerate: () => {
      stop();
      chat.last = turn.parent;
      answer();
    },
    goOn: () => (turn.calls?.length ? answer() : more(turn)),
    decide: (call, isAllowed) => decide(turn, call, isAllowed),
    isCalled: (call) => tools.running.has(call),
    serverOf: (call) => tools.serverOf(call),
    isLast: () => chat.last === turn.id,
    versions: () => branches.versions(chat, turn),
    show: (one) => {
      stop();
      branches.goTo(chat, one.id);
      store.save(chat);
      show();
    },
  });
}

/** A question that is changed is asked beside the old one; an answer that is changed stands. */
function edit(turn, text) {
  stop();
  if (turn.role === "user") {
    chat.last = turn.parent;
    send(text, turn.files);
    return;
  }
  const changed = { changed: store.now(), text, drafted: [], timings: null, reason: "changed", error: null };
  Object.assign(turn, changed);
  keep();
}

function send(text, files = []) {
  branches.add(chat, store.newTurn({ role: "user", text, ...(files.length ? { files } : {}) }));
  answer();
}

/** Make a call, or not, as the reader says; when all are decided the answer goes on. */
async function decide(turn, call, isAllowed) {
  const own = chat;
  await tools.decide(call, isAllowed, show);
  turn.changed = store.now();
  if (own !== chat) unread.add(own.id);
  keep(own);
  const isDecided = turn.calls.every((one) => one.result !== undefined);
  if (isDecided && own === chat && chat.last === turn.id && !running.has(chat.id)) answer();
}

/** Let the model answer the last turn. */
function answer() {
  const request = body(branches.path(chat), chat.system, fields());
  run(branches.add(chat, store.newTurn({ role: "assistant", text: "", drafted: [], ...served.field() })), request);
}

/** Let the model go on with its last answer. */
function more(turn) {
  stop();
  const request = body(branches.path(chat), chat.system, fields(), true);
  Object.assign(turn, { reason: null, error: null });
  run(turn, request);
}

const fields = () => ({ ...settings.request(), ...served.field(), ...tools.field() });

async function run(turn, request) {
  keep();
  const view = views.at(-1);
  const controller = new AbortController();
  const own = { controller, chat, turn, view };
  running.set(chat.id, own);
  view.isWaiting = true;
  view.onupdate = () => own.chat === chat && followEnd();
  view.update();
  refresh();
  toEnd();
  byId("said").textContent = "The answer begins.";
  await attempt(own, request);
  view.isWaiting = false;
  turn.changed = store.now();
  if (own.chat !== chat) unread.add(own.chat.id);
  if (running.get(own.chat.id) === own) running.delete(own.chat.id);
  if (byId("trouble").textContent === BUSY) tellTrouble("");
  refresh();
  byId("said").textContent = turn.error ?? (turn.calls ? "The model asks to call a tool." : "The answer has ended.");
  if (turn.refused && own.chat === chat) takeBack(turn);
  else if (own.chat.turns.includes(turn)) keep(own.chat);
  view.update();
  if (own.chat === chat) followEnd();
}

async function attempt({ controller, turn, view }, request) {
  try {
    await receive(turn, request, controller.signal, () => view.updateSoon());
  } catch (error) {
    if (error.name === "AbortError") {
      turn.reason = "stopped";
    } else if (error.status === 401 && !turn.text) {
      if (await askKey()) {
        served.connect();
        await attempt({ controller, turn, view }, request);
      } else {
        Object.assign(turn, { error: error.message, refused: true });
      }
    } else {
      turn.error = error.message;
      turn.refused = error.status >= 400 && error.status < 500 && !turn.text;
      if ([0, 503].includes(error.status)) served.connect(); // it says when the server is back
    }
  }
}

/** Take a message that the server refused out of the conversation, back into the field if nothing else answers it. */
function takeBack(turn) {
  const question = chat.turns.find((one) => one.id === turn.parent && one.role === "user");
  const isAlone = branches.versions(chat, turn).length === 1;
  branches.remove(chat, isAlone && question ? [question, turn] : [turn]);
  tellTrouble(turn.error);
  if (isAlone && question && composer.isEmpty) {
    composer.write(question.text);
    composer.attach(question.files ?? []);
  }
  if (chat.turns.length) keep();
  else store.remove(chat.id);
  show();
  list();
}

/** Stop the answer that comes to a conversation. */
function stop(id = chat.id) {
  running.get(id)?.controller.abort();
  running.delete(id);
  refresh();
}

async function keep(which = chat) {
  which.time = Date.now();
  if (which === chat) show();
  if (!(await store.save(which))) tellTrouble(store.trouble());
  list();
}

function refresh() {
  const button = byId("send");
  const isRunning = running.has(chat.id);
  button.textContent = isRunning ? "Stop" : "Send";
  button.classList.toggle("stop", isRunning);
  byId("turns").setAttribute("aria-busy", String(isRunning));
}

function list() {
  const heading = store.called({ name: chat.name, title: store.title(chat) });
  byId("title").textContent = heading;
  document.title = chat.turns.length ? `${heading} · forerun` : "forerun";
  byId("welcome").hidden = chat.turns.length > 0;
  side.show(chat.id);
}

/** Take over what another tab has changed. */
async function follow(id) {
  const ours = id === chat.id ? chat : running.get(id)?.chat;
  if (ours) await store.merge(ours, !running.has(id));
  if (ours && ours === chat) show();
  list();
}

let atEnd = true;
log.addEventListener("scroll", () => {
  atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
});

function toEnd() {
  log.scrollTop = log.scrollHeight;
  atEnd = true;
}

/** Stay at the end, unless the reader has scrolled away from it. */
function followEnd() {
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function tellTrouble(text) {
  byId("trouble").textContent = text;
  byId("trouble").hidden = !text;
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running.has(chat.id)) stop();
  else composer.submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (running.has(chat.id)) stop();
  else document.body.classList.remove("side-open");
});
const begin = () => open(store.newChat(settings.values.system));
byId("new").addEventListener("click", begin);
listen({
  new: begin,
  search: () => {
    document.body.classList.add("side-open");
    byId("search").focus();
  },
  write: () => composer.focus(),
  copy: async () => {
    const last = branches.path(chat).findLast((turn) => turn.role === "assistant" && turn.text);
    if (!last) return;
    await navigator.clipboard?.writeText(last.text);
    byId("said").textContent = "The answer is copied.";
  },
}, make);
byId("help").addEventListener("click", () => byId("keys").showModal());
byId("open-side").addEventListener("click", () => document.body.classList.toggle("side-open"));
byId("close-side").addEventListener("click", () => document.body.classList.remove("side-open"));
byId("shade").addEventListener("click", () => settings.set("tint", !settings.values.tint));
/** Who leaves the page in the middle of answers has stopped them. */
function leave() {
  for (const own of [...running.values()]) {
    Object.assign(own.turn, { reason: "stopped", changed: store.now() });
    keep(own.chat);
    stop(own.chat.id);
  }
}

addEventListener("beforeunload", leave); // a reload breaks the stream before the page is hidden
addEventListener("pagehide", leave); // a phone may say this alone
for (const text of EXAMPLES) {
  byId("examples").append(make("button", { type: "button", onclick: () => send(text) }, text));
}
await store.start(follow);
open((await store.chat(store.here.get("chat"))) ?? store.newChat(settings.values.system));
applySettings();
served.connect();
