// The server's own API: the key, errors in words, streams.

const KEY = "forerun.key";

export const key = {
  get: () => localStorage.getItem(KEY) ?? "",
  set: (value) => localStorage.setItem(KEY, value),
};

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const STATUSES = { invalid_request_error: 400, rate_limit_error: 429, unavailable_error: 503 };

/** The status that an error within a stream would have had before it. */
const statusOf = ({ code, type }) => (Number.isInteger(code) ? code : (STATUSES[type] ?? 500));

async function ask(path, options = {}) {
  const headers = { "content-type": "application/json" };
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the server does not answer");
  }
  if (answer.ok) return answer;
  const document = await answer.json().catch(() => null);
  throw new ApiError(answer.status, document?.error?.message ?? `the server answered ${answer.status}`);
}

/** The models that are served: {id, max_model_len, drafter} of each. */
export async function models() {
  const found = await (await ask("v1/models")).json();
  return found.data;
}

/** The MCP servers that this server asks: {server_id, tools, error} of each. */
export async function toolServers() {
  return (await (await ask("mcp-rest/tools/list")).json()).servers;
}

/** Call a tool: {server_id, name, arguments}; its result as the protocol has it. */
export async function callTool(call) {
  return (await ask("mcp-rest/tools/call", { method: "POST", body: JSON.stringify(call) })).json();
}

/** The chunks of an answer as they come. Throws ApiError, and AbortError when `signal` ends it. */
export async function* stream(body, signal) {
  const answer = await ask("v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "the connection was lost");
    }
    if (part.done) throw new ApiError(0, "the connection was lost");
    const events = (rest + part.value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith(":")) continue; // a comment: the server lives
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(statusOf(chunk.error), chunk.error.message);
      yield chunk;
    }
  }
}
