// The field to write in, and files that go with it: what is not sent stays over a reload.

import { read, size } from "./files.js";
import { make } from "./render.js";
import { here } from "./store.js";
import { grow } from "./turns.js";

const byId = (id) => document.getElementById(id);

/** A text whose first letter is Hebrew, Arabic or of their neighbours. */
const RIGHT_TO_LEFT = /^\P{L}*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/u;

export class Composer {
  /** `act` has send(text, files), which says whether they were sent, and tell(text) for what goes wrong. */
  constructor(act) {
    this.act = act;
    this.prompt = byId("prompt");
    this.files = [];
    this.prompt.addEventListener("input", () => this.write(this.prompt.value));
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.submit();
    });
    this.takeFiles();
    this.write(here.get("unsent") ?? "");
    this.attach(JSON.parse(here.get("files") ?? "[]"));
  }

  get isEmpty() {
    return !this.prompt.value && !this.files.length;
  }

  /** Put a text into the field, and keep it over a reload. */
  write(text) {
    this.prompt.value = text;
    this.prompt.dir = RIGHT_TO_LEFT.test(text.slice(0, 200)) ? "rtl" : "ltr"; // dir=auto takes seconds for megabytes
    here.set("unsent", text);
    grow(this.prompt);
  }

  /** Take files in place of those that are there: {name, text} of each. */
  attach(files) {
    this.files = files;
    here.set("files", JSON.stringify(files));
    byId("files").replaceChildren(...files.map((file) => this.chip(file)));
    byId("files").hidden = !files.length;
  }

  chip(file) {
    const remove = () => {
      this.attach(this.files.filter((one) => one !== file));
      this.focus();
    };
    const button = make("button", { type: "button", className: "icon", "aria-label": `Remove ${file.name}`, title: "Remove", onclick: remove }, "✕");
    return make("li", {}, make("strong", { dir: "auto" }, file.name), make("span", { className: "note" }, size(file)), button);
  }

  submit() {
    const text = this.prompt.value.trim();
    if (!(text || this.files.length) || !this.act.send(text, this.files)) return;
    this.write("");
    this.attach([]);
  }

  focus() {
    this.prompt.focus();
  }

  takeFiles() {
    const { body } = document;
    const chosen = byId("file");
    byId("attach").addEventListener("click", () => chosen.click());
    chosen.addEventListener("change", () => {
      this.take([...chosen.files]);
      chosen.value = "";
    });
    const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
    addEventListener("dragover", (event) => {
      if (!holdsFiles(event)) return;
      event.preventDefault();
      body.classList.add("dropping");
    });
    addEventListener("dragleave", (event) => event.relatedTarget || body.classList.remove("dropping"));
    addEventListener("drop", (event) => {
      body.classList.remove("dropping");
      if (!holdsFiles(event)) return;
      event.preventDefault(); // else the browser leaves the page for the file
      this.take([...event.dataTransfer.files]);
    });
    this.prompt.addEventListener("paste", (event) => {
      const { files } = event.clipboardData;
      if (!files.length || event.clipboardData.types.includes("text/plain")) return;
      event.preventDefault();
      this.take([...files]);
    });
  }

  async take(files) {
    const troubles = [];
    for (const file of files) {
      try {
        this.attach([...this.files, await read(file)]);
      } catch (error) {
        troubles.push(error.message);
      }
    }
    this.act.tell(troubles.join(" "));
    this.focus();
  }
}
