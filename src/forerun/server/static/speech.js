// Answers spoken by a voice of this machine: others would send the text elsewhere.

import { make } from "./render.js";

const speech = globalThis.speechSynthesis;
const voice = () => {
  const voices = speech?.getVoices().filter((one) => one.localService) ?? [];
  const own = (one) => one.lang.slice(0, 2) === navigator.language.slice(0, 2);
  return voices.find((one) => one.default) ?? voices.find(own) ?? voices[0];
};

/** A button that reads what `text()` gives, or stops; hidden where this machine has no voice. */
export function readButton(text) {
  const button = make("button", { type: "button", className: "quiet", hidden: !voice() }, "Listen");
  speech?.addEventListener?.("voiceschanged", () => (button.hidden = !voice()));
  const stopped = () => (button.textContent = "Listen");
  button.addEventListener("click", () => {
    const isReading = button.textContent !== "Listen";
    speech.cancel();
    if (isReading) return stopped();
    const spoken = Object.assign(new SpeechSynthesisUtterance(text()), { voice: voice(), onend: stopped, onerror: stopped });
    button.textContent = "Stop the voice";
    speech.speak(spoken);
  });
  return button;
}
