// The kinds of words in code, which have colours.

import highlighter from "./vendor/highlight.min.js";

const MOST = 30_000; // letters: each frame of an answer reads its last block anew
const LONGEST = /[^\n]{1001}/; // letters of a line: some languages take the square of a word's length

/** By line of a code: its ranges, as {length, kind}; kind is null for what has no colour. */
export function kinds(text, language) {
  const lines = [[]];
  const put = (leaf, kind) => {
    for (const [i, line] of leaf.split("\n").entries()) {
      if (i) lines.push([]);
      lines.at(-1).push({ length: line.length, kind });
    }
  };
  const walk = ({ scope, children }, outer) => {
    const kind = !scope || scope.startsWith("language:") ? outer : scope.split(".")[0];
    for (const child of children) typeof child === "string" ? put(child, kind) : walk(child, kind);
  };
  walk(tree(text, language), null);
  return lines;
}

function tree(text, language) {
  if (text.length > MOST || LONGEST.test(text) || !highlighter.getLanguage(language)) return { children: [text] };
  // its `value` is HTML, which nothing here reads; the tree is what HTML is made from
  return highlighter.highlight(text, { language, ignoreIllegals: true })._emitter.rootNode;
}
