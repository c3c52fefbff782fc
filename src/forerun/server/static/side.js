// The list at the side: conversations to open, to search, to pin, to rename, to delete, to take along as a file.

import { make } from "./render.js";
import * as store from "./store.js";
import { exported, imported } from "./transfer.js";

const byId = (id) => document.getElementById(id);
const PAUSE = 150; // ms without a key before a search

export class Side {
  /** `act` has open(id), remove(id), note(id, {name} or {pinned}), tell(text), changed() after an import, and mark(id): what there is to say
   *  of a conversation, as {kind, text}. */
  constructor(act) {
    this.act = act;
    this.found = null;
    this.isRenaming = false;
    byId("search").addEventListener("input", () => {
      clearTimeout(this.soon);
      this.soon = setTimeout(() => this.search(), PAUSE);
    });
    byId("export").addEventListener("click", () => this.download());
    byId("import").addEventListener("click", () => byId("chats-file").click());
    byId("chats-file").addEventListener("change", () => this.take(byId("chats-file").files[0]));
  }

  /** Show the list; `current` is the id of the conversation that is open. */
  show(current = this.current) {
    this.current = current;
    if (this.isRenaming) return;
    const heads = store.chats().filter((head) => !this.found || this.found.has(head.id));
    byId("chats").replaceChildren(...heads.map((head) => this.item(head)));
    byId("nothing-found").hidden = !this.found || heads.length > 0;
    byId("export").disabled = !store.chats().length;
  }

  item(head) {
    const title = store.called(head);
    const around = this.found?.get(head.id);
    const text = around && make("span", { className: "around" }, around);
    const name = make("button", { type: "button", className: "title", dir: "auto", onclick: () => this.act.open(head.id) }, head.pinned ? `★ ${title}` : title, text);
    if (head.id === this.current) name.setAttribute("aria-current", "true");
    const mark = this.act.mark(head.id);
    const icon = (sign, what, onclick) => make("button", { type: "button", className: "icon", "aria-label": `${what} ${title}`, title: what, onclick }, sign);
    return make(
      "li",
      {},
      mark && make("span", { className: `mark ${mark.kind}`, role: "img", "aria-label": mark.text, title: mark.text }),
      name,
      icon(head.pinned ? "★" : "☆", head.pinned ? "Unpin" : "Pin", () => this.act.note(head.id, { pinned: head.pinned ? 0 : 1 })),
      icon("✎", "Rename", () => this.rename(head, name)),
      icon("✕", "Delete", () => confirm("Delete this conversation?") && this.act.remove(head.id)),
    );
  }

  /** Let a name be written in the place of the old one. */
  rename(head, name) {
    const input = make("input", { value: store.called(head), "aria-label": "Name", maxLength: 80 });
    const close = (isKept) => {
      if (!this.isRenaming) return;
      this.isRenaming = false;
      if (isKept && input.value.trim() !== store.called(head)) this.act.note(head.id, { name: input.value.trim() });
      this.show();
    };
    input.addEventListener("blur", () => close(true));
    input.addEventListener("keydown", (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.stopPropagation();
      close(event.key === "Enter");
    });
    this.isRenaming = true;
    name.replaceWith(input);
    input.select();
  }

  async search() {
    const text = byId("search").value.trim();
    const found = text ? await store.search(text) : null;
    if (text !== byId("search").value.trim()) return; // more was written meanwhile
    this.found = found;
    this.show();
  }

  async download() {
    const href = URL.createObjectURL(await exported());
    make("a", { href, download: `forerun-${new Date().toISOString().slice(0, 10)}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(href), 60_000);
  }

  async take(file) {
    byId("chats-file").value = "";
    try {
      const count = await imported(file);
      this.act.tell("");
      byId("said").textContent = `${count} conversations are imported.`;
    } catch (error) {
      this.act.tell(error.message);
    }
    this.act.changed();
  }
}
