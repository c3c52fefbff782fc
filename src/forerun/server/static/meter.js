// Why an answer was fast: speed, tokens a pass, and the passes that plain decoding would have needed.

import { make } from "./render.js";

/** The figures of `timings` in words. Plain decoding needs one pass for each token after the first. */
export function figures(timings) {
  const plain = Math.max(timings.predicted_n - 1, 0);
  const first = timings.prompt_ms ? `first token after ${(timings.prompt_ms / 1000).toFixed(2)} s` : null;
  const speed = `${timings.predicted_per_second.toFixed(1)} tok/s`;
  const tau = timings.passes ? `τ ${timings.tokens_per_pass.toFixed(2)} tokens a pass` : null;
  const passes = count(timings.passes, "pass", "passes");
  const after = `${count(plain, "token", "tokens")} after the first`;
  const told = timings.draft_n
    ? `${timings.draft_n_accepted} of ${timings.draft_n} guesses right`
    : timings.drafter === "none" && "no drafting";
  return {
    parts: [speed, first, tau, `${after} in ${passes}; plain decoding needs ${plain}`, told].filter(Boolean),
    share: plain ? Math.min(timings.passes / plain, 1) : 1,
  };
}

function count(number, one, many) {
  return `${number} ${number === 1 ? one : many}`;
}

/** A line below an answer, with a bar: the passes there were, of those that plain decoding needs. */
export class Meter {
  constructor() {
    this.bar = make("span", { className: "fill" });
    this.words = make("span", { className: "words" });
    const title = "Passes of the model; the whole bar is what plain decoding would have needed";
    const bar = make("span", { className: "bar", title }, this.bar);
    this.element = make("p", { className: "meter", hidden: true }, bar, this.words);
  }

  /** `model` is named where there are several. */
  show(timings, model) {
    this.element.hidden = !timings || !timings.predicted_n;
    if (this.element.hidden) return;
    const { parts, share } = figures(timings);
    this.bar.style.width = `${share * 100}%`;
    this.words.replaceChildren(...[model, ...parts].filter(Boolean).map((part) => make("span", {}, part)));
  }
}
