// One answer as it comes from the server, put into a turn.

import { stream } from "./api.js";

/** The body of a request for the next turn of a conversation, or for more of the last one if `goesOn`. */
export function body(turns, system, fields, goesOn = false) {
  const messages = turns.filter((turn) => turn.text).map(({ role, text }) => ({ role, content: text }));
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

/** Fill `turn` with the answer; `onchange` is called with each chunk. Throws what ended it early. */
export async function follow(turn, request, signal, onchange) {
  const pieces = new Pieces();
  const calls = new Calls(turn);
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
    for (const call of called ?? []) calls.push(call.function ?? {});
    if (chunk.timings) turn.timings = chunk.timings;
    if (choice?.finish_reason) {
      calls.close();
      turn.reason = choice.finish_reason;
    }
    onchange();
  }
}

/** Calls of tools, as blocks of code in a turn's text: name and arguments. */
export class Calls {
  constructor(turn) {
    this.turn = turn;
    this.isOpen = false;
  }

  push({ name, arguments: given }) {
    if (name) {
      this.close();
      this.write(`${this.turn.text ? "\n\n" : ""}\`\`\`json\n${name} `);
      this.isOpen = true;
    }
    if (given) this.write(given);
  }

  close() {
    if (this.isOpen) this.write("\n```");
    this.isOpen = false;
  }

  write(text) {
    add(this.turn, { text, from_draft: false });
  }
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
