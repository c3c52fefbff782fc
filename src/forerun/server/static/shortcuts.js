// Keys that do what buttons do, and the list of them.

/** Each has its keys as they are shown, and what it does; Ctrl is also the Mac's command key. */
export const KEYS = [
  { keys: "Ctrl+Shift+O", does: "new", text: "new chat" },
  { keys: "Ctrl+K", does: "search", text: "search conversations" },
  { keys: "/", does: "write", text: "to the message" },
  { keys: "Ctrl+Shift+;", does: "copy", text: "copy the last answer" },
  { keys: "Esc", does: "stop", text: "stop the answer" },
  { keys: "?", does: "help", text: "this list" },
];

/** What a key means, if anything: letters alone only where nothing is being written. */
export function meant({ key, ctrlKey, metaKey, altKey, shiftKey, isComposing }, isWriting) {
  if (isComposing || altKey || key === "Escape") return null; // Esc also closes what is open: `main.js`
  if (ctrlKey || metaKey) {
    const pressed = `Ctrl+${shiftKey ? "Shift+" : ""}${key === ":" ? ";" : key.toUpperCase()}`;
    return KEYS.find((one) => one.keys === pressed)?.does ?? null;
  }
  return isWriting ? null : (KEYS.find((one) => one.keys === key)?.does ?? null);
}

/** Listen to the keys; `act` has a function for each thing that they do, `make` makes an element. */
export function listen(act, make) {
  const dialog = document.getElementById("keys");
  const rows = KEYS.flatMap(({ keys, text }) => [make("dt", {}, make("kbd", {}, keys)), make("dd", {}, text)]);
  dialog.querySelector("dl").append(...rows);
  dialog.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close();
  });
  document.addEventListener("keydown", (event) => {
    const isWriting = event.target.matches?.("input, textarea, select, [contenteditable]");
    const does = document.querySelector("dialog[open]") ? null : meant(event, isWriting);
    if (!does) return;
    event.preventDefault();
    if (does === "help") dialog.showModal();
    else act[does]();
  });
}
