// The field to write in: what is not sent stays over a reload, files are read into it.

import { quoted } from "./files.js";
import { here } from "./store.js";
import { grow } from "./turns.js";

const byId = (id) => document.getElementById(id);

/** A text whose first letter is Hebrew, Arabic or of their neighbours. */
const RIGHT_TO_LEFT = /^\P{L}*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/u;

export class Composer {
  /** `act` has send(text), which says whether it was sent, and tell(text) for what goes wrong. */
  constructor(act) {
    this.act = act;
    this.prompt = byId("prompt");
    this.prompt.addEventListener("input", () => this.write(this.prompt.value));
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.submit();
    });
    this.takeFiles();
    this.write(here.get("unsent") ?? "");
  }

  get text() {
    return this.prompt.value;
  }

  /** Put a text into the field, and keep it over a reload. */
  write(text) {
    this.prompt.value = text;
    this.prompt.dir = RIGHT_TO_LEFT.test(text.slice(0, 200)) ? "rtl" : "ltr"; // dir=auto takes seconds for megabytes
    here.set("unsent", text);
    grow(this.prompt);
  }

  submit() {
    const text = this.text.trim();
    if (text && this.act.send(text)) this.write("");
  }

  focus() {
    this.prompt.focus();
  }

  takeFiles() {
    const { body } = document;
    const chosen = byId("file");
    byId("attach").addEventListener("click", () => chosen.click());
    chosen.addEventListener("change", () => {
      this.read([...chosen.files]);
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
      this.read([...event.dataTransfer.files]);
    });
    this.prompt.addEventListener("paste", (event) => {
      const { files } = event.clipboardData;
      if (!files.length || event.clipboardData.types.includes("text/plain")) return;
      event.preventDefault();
      this.read([...files]);
    });
  }

  async read(files) {
    const troubles = [];
    for (const file of files) {
      try {
        const text = await quoted(file);
        this.write([this.text.trimEnd(), text].filter(Boolean).join("\n\n") + "\n\n");
      } catch (error) {
        troubles.push(error.message);
      }
    }
    this.act.tell(troubles.join(" "));
    this.focus();
  }
}
