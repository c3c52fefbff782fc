// Tools of MCP servers, which the model may call: the server asks those that it was started with, and no others.

import { callTool, toolServers } from "./api.js";
import { make } from "./render.js";

const byId = (id) => document.getElementById(id);
const NOT_ALLOWED = "The user did not allow this call.";

export class Tools {
  /** Which servers' tools are offered is kept in the settings; `onchange` is called when that changes. */
  constructor(settings, onchange) {
    this.settings = settings;
    this.onchange = onchange;
    this.servers = [];
    this.running = new WeakSet(); // calls that a server works on
  }

  /** Ask which servers there are. */
  async connect() {
    this.servers = await toolServers().catch(() => []);
    byId("tools").hidden = !this.servers.length;
    byId("tools").replaceChildren(make("legend", {}, "Tools"), ...this.servers.map((one) => this.choice(one)));
    this.onchange();
  }

  choice({ server_id: id, tools, error }) {
    const box = make("input", { type: "checkbox", checked: this.isOn(id), disabled: Boolean(error) });
    box.addEventListener("change", () => {
      const others = this.chosen.filter((name) => name !== id);
      this.settings.set("tools", box.checked ? [...others, id] : others);
      this.onchange();
    });
    const names = error ?? tools.map((tool) => tool.name).join(", ");
    return make("div", {}, make("label", { className: "switch" }, box, id), make("p", { className: error ? "note error" : "note" }, names));
  }

  get chosen() {
    return this.settings.values.tools ?? [];
  }

  isOn(id) {
    return this.chosen.includes(id);
  }

  /** Tools that are offered, by the names that the model knows them by: {server, tool} of each. */
  offered() {
    const found = new Map();
    for (const { server_id: server, tools } of this.servers.filter((one) => this.isOn(one.server_id))) {
      for (const tool of tools) found.set(found.has(tool.name) ? `${server}_${tool.name}` : tool.name, { server, tool });
    }
    return found;
  }

  /** The server that a call goes to, if any. */
  serverOf(call) {
    return this.offered().get(call.name)?.server;
  }

  /** The field of a request that offers them. */
  field() {
    const tools = [...this.offered()].map(([name, { tool }]) => ({
      type: "function",
      function: { name, description: tool.description ?? "", parameters: tool.inputSchema ?? { type: "object" } },
    }));
    return tools.length ? { tools } : {};
  }

  /** Make a call that is allowed, and put what came of it into it as `result`; `onchange` is called when it begins. */
  async decide(call, isAllowed, onchange) {
    if (!isAllowed) return Object.assign(call, { result: NOT_ALLOWED, isError: true });
    this.running.add(call);
    onchange();
    try {
      const { server, tool } = this.offered().get(call.name) ?? {};
      if (!tool) throw new Error(`there is no tool ${call.name} now`);
      const found = await callTool({ server_id: server, name: tool.name, arguments: argumentsOf(call) });
      return Object.assign(call, { result: resultOf(found), isError: Boolean(found.isError) });
    } catch (error) {
      return Object.assign(call, { result: `Error: ${error.message}`, isError: true });
    } finally {
      this.running.delete(call);
    }
  }
}

function argumentsOf(call) {
  let given = null;
  try {
    given = JSON.parse(call.arguments || "{}");
  } catch {
    // told below
  }
  if (given === null || typeof given !== "object" || Array.isArray(given)) throw new Error("the arguments are not a JSON object");
  return given;
}

/** A tool's result as the text that the model reads; what is no text is named. */
export function resultOf({ content }) {
  const parts = Array.isArray(content) ? content : [];
  return parts.map((part) => part.text ?? part.resource?.text ?? `[${part.type}${part.mimeType ? `, ${part.mimeType}` : ""}]`).join("\n");
}

/** The calls of an answer, with what is sent, a choice whether it is, and what came back. */
export class CallsView {
  /** `act` has decide(call, isAllowed), isCalled(call), which tells whether a server works on it, and serverOf(call). */
  constructor(act) {
    this.act = act;
    this.element = make("div", { className: "calls", hidden: true });
    this.shown = "";
  }

  /** `canDecide`: the answer has ended, and is the last turn. */
  show(calls, canDecide) {
    const all = calls ?? [];
    const state = JSON.stringify([all, canDecide, all.map((call) => [this.act.isCalled(call), this.act.serverOf(call)])]);
    if (state === this.shown) return;
    this.shown = state;
    this.element.hidden = !all.length;
    this.element.replaceChildren(...all.map((call) => this.card(call, canDecide)));
  }

  card(call, canDecide) {
    const isCalled = this.act.isCalled(call);
    const server = this.act.serverOf(call);
    const isOpen = call.result === undefined && !isCalled;
    const button = (text, isAllowed, className = "") =>
      make("button", { type: "button", className, onclick: () => this.act.decide(call, isAllowed) }, text);
    const yes = server ? button("Call", true, "main") : null;
    const choice = isOpen && canDecide && make("div", { className: "end" }, button("Do not call", false), yes);
    const result = call.result !== undefined && make("details", {}, make("summary", {}, call.isError ? "Error" : "Result"), make("pre", { tabIndex: 0 }, call.result));
    const asked = server ? `The model asks to send this to ${server}.` : "The model asks for a tool that is not offered.";
    const state = isCalled ? "The tool is called…" : isOpen ? asked : "";
    return make(
      "div",
      { className: "call", role: "group", "aria-label": `Call of ${call.name}` },
      make("p", {}, make("strong", {}, call.name), " ", make("span", { className: "note" }, state)),
      make("pre", { tabIndex: 0 }, pretty(call.arguments)),
      choice || null,
      result || null,
    );
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
