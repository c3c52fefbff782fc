// One turn of a conversation on the page: its text, what can be done with it, and how it was decoded.

import { size } from "./files.js";
import { Meter } from "./meter.js";
import { copyButton, make, Markdown } from "./render.js";
import { readButton } from "./speech.js";
import { CallsView } from "./tools.js";

const PAUSE = 9; // times what drawing a turn took
const LONG = 1500; // letters of a question
const ENDS = {
  length: "The answer was cut: it reached the token limit.",
  stopped: "Stopped.",
};
const CAN_GO_ON = ["length", "stopped", "changed"];

/** `turn` is {role, text, files, model, drafted, thought, calls, timings, reason, error}; `act` has edit(text), versions() of the
 *  turn, show(one of them) and, for answers, regenerate(), goOn(), isLast(), what `CallsView` needs. */
export class TurnView {
  constructor(turn, act) {
    this.turn = turn;
    this.act = act;
    this.isAnswer = turn.role === "assistant";
    this.isWaiting = false;
    this.drawnMs = 0;
    this.body = make("div", { className: this.isAnswer ? "text md" : "text", dir: this.isAnswer ? "" : "auto" });
    this.markdown = new Markdown(this.body);
    this.thought = new Thought();
    this.meter = new Meter();
    this.calls = new CallsView(act);
    this.note = make("p", { className: "note why", hidden: true });
    this.tools = this.makeTools();
    const label = make("h2", { className: "offscreen" }, this.isAnswer ? "Answer" : "You");
    this.element = make("li", { className: `turn ${turn.role}` }, label, this.body);
    if (this.isAnswer) this.body.before(this.thought.element);
    else if (turn.files?.length) this.body.before(attached(turn.files));
    this.element.append(this.note, ...(this.isAnswer ? [this.calls.element, this.meter.element] : []), this.tools);
    this.update();
  }

  makeTools() {
    const button = (text, onclick) => make("button", { type: "button", className: "quiet", onclick }, text);
    this.more = button("Go on", () => this.act.goOn());
    this.versions = new Versions((one) => this.act.show(one));
    return make(
      "div",
      { className: "tools" },
      this.versions.element,
      copyButton(() => this.turn.text),
      button("Edit", () => this.edit()),
      ...(this.isAnswer ? [readButton(() => this.body.innerText), button("Regenerate", () => this.act.regenerate()), this.more] : []),
    );
  }

  /** Whether the answer ended before its end. */
  get canGoOn() {
    const { text, calls, reason, error } = this.turn;
    const isCalled = calls?.length && calls.every((call) => call.result !== undefined);
    return Boolean((isCalled || (text && (error || CAN_GO_ON.includes(reason)))) && this.act.isLast());
  }

  /** Show the turn as it is now. */
  update() {
    const { text, drafted, timings, reason, error, progress } = this.turn;
    this.thought.show(this.turn.thought, this.isWaiting && !text);
    if (this.isAnswer) this.markdown.show(text, drafted ?? []);
    else this.body.textContent = text;
    if (!this.isAnswer && text.length > LONG) this.body.tabIndex = 0; // it scrolls
    this.element.classList.toggle("waiting", this.isWaiting);
    this.note.textContent = error ?? ENDS[reason] ?? (this.isWaiting && progress ? reading(progress) : "");
    this.note.hidden = !this.note.textContent;
    this.note.classList.toggle("error", Boolean(error));
    this.meter.show(timings, this.turn.model);
    this.body.hidden = Boolean(this.editor) || (!text && !this.isWaiting);
    this.calls.show(this.turn.calls, !this.isWaiting && this.act.isLast());
    this.tools.hidden = this.isWaiting;
    this.more.hidden = !this.isAnswer || !this.canGoOn;
    this.versions.show(this.turn, this.act.versions());
  }

  /** Show it again soon; many calls are one. What takes long is shown seldom: the model may need this processor. */
  updateSoon() {
    this.soon ??= setTimeout(() => requestAnimationFrame(() => this.draw()), PAUSE * this.drawnMs);
  }

  draw() {
    const start = performance.now();
    this.soon = null;
    this.update();
    this.onupdate?.();
    this.drawnMs = performance.now() - start;
  }

  /** Let the text be changed in its place. */
  edit() {
    if (this.editor) return;
    const area = make("textarea", { value: this.turn.text, dir: "auto", "aria-label": "Edit" });
    const close = () => {
      this.editor.remove();
      this.editor = null;
      this.body.hidden = this.tools.hidden = false;
    };
    const done = () => {
      const text = area.value;
      close();
      if (text.trim() && (text !== this.turn.text || !this.isAnswer)) this.change(text);
    };
    area.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && !event.shiftKey && !this.isAnswer) done();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    const save = make("button", { type: "button", className: "main", onclick: done });
    save.textContent = this.isAnswer ? "Save" : "Send";
    const cancel = make("button", { type: "button", onclick: close }, "Cancel");
    this.editor = make("div", { className: "editor" }, area, make("div", { className: "end" }, cancel, save));
    this.body.hidden = this.tools.hidden = true;
    this.body.after(this.editor);
    grow(area);
    area.addEventListener("input", () => grow(area));
    area.focus();
  }

  change(text) {
    this.markdown.clear();
    this.act.edit(text);
  }
}

/** The files of a question, each to be opened. */
function attached(files) {
  const one = (file) => make("details", {}, make("summary", {}, make("strong", {}, file.name), make("span", { className: "note" }, size(file))), make("pre", { tabIndex: 0 }, file.text));
  return make("div", { className: "attached" }, ...files.map(one));
}

/** How far the prompt was read, and how long the rest takes at that speed. */
function reading({ total, cache, processed, time_ms: ms }) {
  const left = processed > cache ? (ms * (total - processed)) / (processed - cache) / 1000 : null;
  const time = left && left >= 1 ? `, ${Math.ceil(left)} s left` : "";
  return `Reading the prompt: ${processed} of ${total} tokens${time}`;
}

/** Which of a turn's versions is shown, with a way to the others. */
class Versions {
  constructor(onshow) {
    const button = (label, sign, step) =>
      make("button", { type: "button", className: "quiet", "aria-label": label, onclick: () => onshow(this.all[this.at + step]) }, sign);
    this.older = button("Older version", "‹", -1);
    this.newer = button("Newer version", "›", 1);
    this.count = make("span");
    this.element = make("span", { className: "versions", hidden: true }, this.older, this.count, this.newer);
  }

  show(turn, all) {
    this.all = all;
    this.at = all.indexOf(turn);
    this.element.hidden = all.length < 2;
    this.count.textContent = `${this.at + 1} / ${all.length}`;
    this.older.disabled = this.at <= 0;
    this.newer.disabled = this.at === all.length - 1;
  }
}

/** What the model thinks before it answers: open while it does, then folded away. */
class Thought {
  constructor() {
    const body = make("div", { className: "md" });
    this.summary = make("summary");
    this.element = make("details", { className: "thought", hidden: true }, this.summary, body);
    this.markdown = new Markdown(body);
    this.isThinking = false;
  }

  show(thought, isThinking) {
    this.element.hidden = !thought?.text;
    if (this.element.hidden) return;
    this.markdown.show(thought.text, thought.drafted ?? []);
    this.summary.textContent = isThinking ? "Thinking…" : "Thoughts";
    if (isThinking !== this.isThinking) this.element.open = isThinking;
    this.isThinking = isThinking;
  }
}

/** A text field as high as its text. */
export function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}
