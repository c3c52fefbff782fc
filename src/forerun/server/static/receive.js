// One answer as it comes from the server, put into a turn.

import { stream } from "./api.js";
import { whole } from "./files.js";

const NOT_CALLED = "The call was not made.";

/** The body of a request for the next turn of a conversation, or for more of the last one if `goesOn`. */
export function body(turns, system, fields, goesOn = false) {
  const messages = turns.flatMap(messagesOf);
  if (system.trim()) messages.unshift({ role: "system", content: system });
  const thought = turns.at(-1)?.thought?.text;
  if (goesOn && thought) messages.at(-1).reasoning_content = thought;
  return {
    messages,
    ...fields,
    ...(goesOn ? { continue_final_message: true, add_generation_prompt: false } : {}),
    stream: true,
    stream_options: { include_pieces: true },
    timings_per_token: true,
    return_progress: true,
  };
}

/** A turn as messages: an answer that has called tools is followed by their results. */
function messagesOf({ role, text, files, calls, thought }) {
  const content = whole({ text, files });
  if (!calls?.length) return content ? [{ role, content }] : [];
  const made = calls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } }));
  const thoughts = thought?.text ? { reasoning_content: thought.text } : {};
  const results = calls.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result ?? NOT_CALLED }));
  return [{ role, content, ...thoughts, tool_calls: made }, ...results];
}

/** The fields of a request for what was written of the answer's form. Throws a SyntaxError for a schema that is none. */
export function form({ stop = "", schema = "", thinking = "" }) {
  const lines = stop.split("\n").filter(Boolean);
  const asked = schema.trim() && { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } };
  return {
    ...(lines.length ? { stop: lines } : {}),
    ...(asked ? { response_format: asked } : {}),
    ...(thinking ? { enable_thinking: thinking === "on" } : {}),
  };
}

/** Fill `turn` with the answer; `onchange` is called with each chunk. Throws what ended it early. */
export async function follow(turn, request, signal, onchange) {
  const pieces = new Pieces();
  for await (const chunk of stream(request, signal)) {
    const [choice] = chunk.choices;
    turn.progress = chunk.prompt_progress ?? null;
    pieces.push(choice?.pieces ?? []);
    const { reasoning_content: thought, content, tool_calls: called } = choice?.delta ?? {};
    if (thought) {
      turn.thought ??= { text: "", drafted: [] };
      for (const piece of pieces.take(thought)) add(turn.thought, piece);
    }
    if (content) for (const piece of pieces.take(content)) add(turn, piece);
    for (const call of called ?? []) addCall(turn, call);
    if (chunk.timings) turn.timings = chunk.timings;
    if (choice?.finish_reason) turn.reason = choice.finish_reason;
    onchange();
  }
}

/** Take a part of a call into a turn's `calls`: {id, name, arguments}, the last a text of JSON. */
export function addCall(turn, { index, id, function: { name = "", arguments: given = "" } = {} }) {
  turn.calls ??= [];
  const call = (turn.calls[index] ??= { id, name: "", arguments: "" });
  call.name += name ?? "";
  call.arguments += given ?? "";
}

/** What the model wrote, token by token, with its marks of thoughts; what is shown is found in it again, in order. */
export class Pieces {
  constructor() {
    this.waiting = [];
  }

  push(pieces) {
    this.waiting.push(...pieces);
  }

  /** Cut a text off the pieces, with all before it; as one that was not drafted where it is not in them. */
  take(text) {
    const start = this.waiting.map((piece) => piece.text).join("").indexOf(text);
    if (start < 0) return [{ text, from_draft: false }];
    this.cut(start);
    return this.cut(text.length);
  }

  cut(length) {
    const found = [];
    while (length > 0) {
      const piece = this.waiting.shift();
      const text = piece.text.slice(0, length);
      found.push({ ...piece, text });
      if (text.length < piece.text.length) this.waiting.unshift({ ...piece, text: piece.text.slice(length) });
      length -= text.length;
    }
    return found;
  }
}

/** Append a piece; neighbours that were drafted are one range. */
export function add(turn, { text, from_draft: wasDrafted }) {
  const [start, end] = [turn.text.length, turn.text.length + text.length];
  turn.text += text;
  if (!wasDrafted || !text) return;
  const last = turn.drafted.at(-1);
  if (last?.[1] === start) last[1] = end;
  else turn.drafted.push([start, end]);
}
