// One answer as it comes from the server, put into a turn.

import { stream } from "./api.js";

/** The body of a request for the next turn of a conversation. */
export function body(turns, system, fields) {
  const messages = turns.filter((turn) => turn.text).map(({ role, text }) => ({ role, content: text }));
  if (system.trim()) messages.unshift({ role: "system", content: system });
  return {
    messages,
    ...fields,
    stream: true,
    stream_options: { include_pieces: true },
    timings_per_token: true,
  };
}

/** Fill `turn` with the answer; `onchange` is called with each chunk. Throws what ended it early. */
export async function follow(turn, request, signal, onchange) {
  for await (const chunk of stream(request, signal)) {
    const [choice] = chunk.choices;
    for (const piece of choice?.pieces ?? []) add(turn, piece);
    if (chunk.timings) turn.timings = chunk.timings;
    if (choice?.finish_reason) turn.reason = choice.finish_reason;
    onchange();
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
