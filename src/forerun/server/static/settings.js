// The panel with the system prompt, sampling and drafting; kept as it is changed.

import { form } from "./receive.js";
import { make } from "./render.js";
import { saveSettings, settings as stored } from "./store.js";

const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 5, step: "0.05" },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: "0.01" },
  { name: "top_k", label: "Top k", min: -1, step: "1" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: "0.01" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 2, step: "0.01" },
  { name: "max_tokens", label: "Max tokens", min: 1, step: "1" },
  { name: "seed", label: "Seed", min: 0, step: "1" },
  { name: "max_draft", label: "Most tokens of a draft", min: 1, step: "1", place: "drafting-fields" },
];

const TEXTS = ["stop", "schema", "thinking"];

const byId = (id) => document.getElementById(id);

export class Settings {
  /** `onchange` is called after each change; `system` gets and sets the system prompt of what is shown. */
  constructor(onchange, system) {
    this.values = stored();
    this.onchange = onchange;
    this.system = system;
    this.dialog = byId("settings");
    this.inputs = FIELDS.map((field) => this.number(field));
    for (const name of ["drafting", "tint"]) {
      byId(name).addEventListener("change", () => this.set(name, byId(name).checked));
    }
    for (const name of TEXTS) byId(name).addEventListener("input", () => this.write(name));
    byId("system").addEventListener("input", () => this.say(byId("system").value));
    byId("reset").addEventListener("click", () => {
      this.values = { ...this.values, drafting: true, tint: true, sampling: {}, form: {} };
      this.say("");
      this.fill();
    });
    byId("open-settings").addEventListener("click", () => this.open());
    byId("close-settings").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // beside the panel
    });
    this.dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.dialog.close();
    });
    this.fill();
  }

  number({ name, label, place = "sampling", ...bounds }) {
    const input = make("input", { type: "number", name, placeholder: "auto", inputMode: "decimal", ...bounds });
    input.addEventListener("input", () => {
      const sampling = { ...this.values.sampling };
      delete sampling[name];
      if (input.value !== "" && input.validity.valid) sampling[name] = Number(input.value);
      this.set("sampling", sampling);
    });
    byId(place).append(make("label", {}, make("span", {}, label), input));
    return input;
  }

  write(name) {
    const input = byId(name);
    const written = { ...this.values.form, [name]: input.value };
    let trouble = "";
    try {
      form(written);
    } catch {
      trouble = "This is not JSON: it is not sent.";
    }
    byId("schema").setCustomValidity(trouble);
    this.set("form", trouble ? { ...written, schema: "" } : written);
  }

  set(name, value) {
    this.values = { ...this.values, [name]: value };
    this.changed();
  }

  /** Take a system prompt: for the conversation that is shown, and for new ones. */
  say(text) {
    this.system.set(text);
    this.set("system", text);
  }

  changed() {
    saveSettings(this.values);
    this.onchange(this.values);
  }

  fill() {
    byId("system").value = this.system.get();
    for (const name of ["drafting", "tint"]) byId(name).checked = this.values[name];
    for (const name of TEXTS) byId(name).value = this.values.form?.[name] ?? "";
    byId("schema").setCustomValidity("");
    for (const input of this.inputs) input.value = this.values.sampling[input.name] ?? "";
  }

  open() {
    this.fill();
    this.dialog.showModal();
  }

  /** Name the drafter that the server was started with. */
  tellDrafter(name) {
    byId("drafter").textContent = name && name !== "none" ? `with ${name}, the server's drafter` : "";
  }

  /** The fields that a request is sent with. */
  request() {
    const { max_draft: most, ...sampling } = this.values.sampling;
    const speculative = this.values.drafting ? { max_draft: most } : { drafter: "none" };
    return { ...sampling, ...form(this.values.form ?? {}), ...(this.values.drafting && !most ? {} : { speculative }) };
  }
}
