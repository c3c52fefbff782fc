// A conversation is a tree: each turn names its `parent`, null for a first one, and `chat.last` the turn shown last.

/** The turns that are shown, from a first one to the last. */
export function path(chat) {
  const byId = new Map(chat.turns.map((turn) => [turn.id, turn]));
  const found = [];
  for (let turn = byId.get(chat.last); turn; turn = byId.get(turn.parent)) found.push(turn);
  return found.reverse();
}

/** The turns in this one's place, as old as they are: questions that were edited, answers that were made anew. */
export function versions(chat, turn) {
  return chat.turns.filter((one) => one.parent === turn.parent);
}

/** Put a turn behind the one that is shown last. */
export function add(chat, turn) {
  chat.turns.push({ ...turn, parent: chat.last });
  chat.last = turn.id;
  return chat.turns.at(-1);
}

/** Show the turn with this id, null for none, and the newest of those that follow. */
export function goTo(chat, id) {
  chat.last = id;
  for (let next; (next = chat.turns.findLast((turn) => turn.parent === chat.last)); ) chat.last = next.id;
}

/** Take turns out that nothing follows but each other, and show what stands in their place. */
export function remove(chat, turns) {
  const gone = new Set(turns);
  chat.turns = chat.turns.filter((turn) => !gone.has(turn));
  goTo(chat, turns[0].parent);
}
