// What the server serves: its models, named at the top, and the key that it may ask for.

import { key, models } from "./api.js";
import { make } from "./render.js";

const byId = (id) => document.getElementById(id);

export class Served {
  /** `onchange` is called when the models are known, and when another one is chosen. */
  constructor(settings, onchange) {
    this.settings = settings;
    this.onchange = onchange;
    this.models = [];
    this.isWaiting = false;
    byId("models").addEventListener("change", () => {
      settings.set("model", byId("models").value);
      onchange();
    });
  }

  /** Ask what is served until the server answers, and say meanwhile why it does not. */
  async connect() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    while (this.isWaiting) {
      try {
        this.offer(await models());
        this.isWaiting = false;
      } catch (error) {
        byId("model").hidden = false;
        if (error.status === 401) {
          if (await askKey()) continue;
          byId("model").textContent = "No key: sending asks for it again";
          this.isWaiting = false;
          return;
        }
        byId("model").textContent = error.status === 503 ? "Loading the model…" : `Waiting: ${error.message}`;
        await new Promise((resolve) => setTimeout(resolve, 1000));
      }
    }
  }

  /** Name the model that is served; of several let one be chosen. */
  offer(found) {
    const told = (one) => (one.drafter ? `drafter ${one.drafter}, context of ${one.max_model_len} tokens` : "");
    this.models = found;
    byId("model").textContent = found[0].id;
    byId("model").title = told(found[0]);
    const picker = byId("models");
    picker.replaceChildren(...found.map((one) => make("option", { value: one.id, title: told(one) }, one.id)));
    if (found.some((one) => one.id === this.settings.values.model)) picker.value = this.settings.values.model;
    picker.hidden = found.length < 2;
    byId("model").hidden = !picker.hidden;
    this.onchange();
  }

  /** The model that answers, once it is known. */
  get chosen() {
    return this.models.find((one) => one.id === byId("models").value) ?? this.models[0];
  }

  /** The field of a request that names the model, if there are several. */
  field() {
    return this.models.length > 1 ? { model: byId("models").value } : {};
  }
}

/** Ask for the key, which is kept for the next time; false if none was given. */
export function askKey() {
  const dialog = byId("ask-key");
  byId("key-note").textContent = key.get()
    ? "The server does not take that key."
    : "This server asks for a key. It is kept in this browser.";
  byId("key").value = "";
  let isGiven = false;
  dialog.showModal();
  dialog.querySelector("form").onsubmit = (event) => {
    event.preventDefault();
    key.set(byId("key").value.trim());
    isGiven = true;
    dialog.close();
  };
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(isGiven), { once: true }));
}
