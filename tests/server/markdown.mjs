// The law of markdown.js, run by test_page.py in a folder with the page's files.
import assert from "node:assert/strict";
import { parse, safe } from "./markdown.js";
import { add, addCall, body, form } from "./receive.js";
import { read, size, textOf, whole } from "./files.js";
import { resultOf } from "./tools.js";
import { KEYS, meant } from "./shortcuts.js";
import * as branches from "./branches.js";
import { kinds } from "./code.js";

// A block as a short text: leaves are slices of the source.
function show(source, node) {
  const all = (nodes) => nodes.map((each) => show(source, each)).join("");
  switch (node.type) {
    case "text": return source.slice(node.start, node.end);
    case "entity": return node.text;
    case "codespan": {
      const starts = [node.start, ...(node.cuts ?? []).map((cut) => cut + 1)];
      return `{code ${starts.map((from, at) => source.slice(from, node.cuts?.[at] ?? node.end)).join("")}}`;
    }
    case "code": return `{${node.language}: ${node.lines.map((l) => source.slice(l.start, l.end)).join("/")}}`;
    case "math": return `{math ${source.slice(node.start, node.end)}}`;
    case "formula": return `{formula ${node.lines.map((l) => source.slice(l.start, l.end)).join("\n")}}`;
    case "link": return `{link ${node.href} ${all(node.children)}}`;
    case "list": {
      const box = (at) => ({ true: "[x]", false: "[]" })[node.tasks[at]] ?? "";
      return `{${node.isOrdered ? node.number : "-"} ${node.items.map((each, at) => box(at) + all(each)).join(";")}}`;
    }
    case "table": return `{${node.align} ${node.rows.map((row) => row.map(all).join(",")).join(";")}}`;
    case "break": return "/";
    case "rule": return "{rule}";
    case "heading": return `{h${node.level} ${all(node.children)}}`;
    case "paragraph": return `{p ${all(node.children)}}`;
    default: return `{${node.type} ${all(node.children)}}`;
  }
}
const shown = (source) => parse(source).map((block) => show(source, block)).join("");

for (const [source, expected] of [
  ["a\nb\n\nc", "{p a/b}{p c}"],
  ["# One\ntwo", "{h1 One}{p two}"],
  ["**a *b*** _c_ ~~d~~ snake_case_name 2 * 3 * 4", "{p {strong a {em b}} {em c} {del d} snake_case_name 2 * 3 * 4}"],
  ["It costs $5, so set `$HOME` now. Pay $10 or `$x`.", "{p It costs $5, so set {code $HOME} now. Pay $10 or {code $x}.}"],
  ["a $x$ `b` $5 `$` $y$", "{p a {math x} {code b} $5 {code $} {math y}}"],
  ["use `a*b*` and \\*this\\*", "{p use {code a*b*} and *this*}"],
  ["```py\nx = 1\n\n# no heading\n```\nafter", "{py: x = 1//# no heading}{p after}"],
  ["```js\nstill", "{js: still}"],
  ["- a\n  - b\n- c", "{- {p a}{- {p b}};{p c}}"],
  ["3. a\n\n   more\n4. b", "{3 {p a}{p more};{p b}}"],
  ["1. a\n   ```\n   x\n     y\n   ```", "{1 {p a}{: x/  y}}"],
  ["> a\n> > b", "{quote {p a}{quote {p b}}}"],
  ["| a | b |\n|---|--:|\n| 1 | *2* |", "{left,right a,b;1,{em 2}}"],
  ["| a |\n|---|\n| `a \\| b` \\| c |\n| d \\|", "{left a;{code a | b} | c;d |}"],
  ["| a | b |\n|-|-|\n| x \\| y | z |", "{left,left a,b;x | y,z}"],
  ["`a \\| b`", "{p {code a \\| b}}"],
  ["- [x] done\n- [ ] open\n- [a] none", "{- [x]{p done};[]{p open};{p [a] none}}"],
  ["1. [X] a", "{1 [x]{p a}}"],
  ["so \\(a_1^2 * b_1\\) and $$x_1 * y_1$$.", "{p so {math a_1^2 * b_1} and {math x_1 * y_1}.}"],
  ["\\[\na_1 \\\\\n*b*\n\\]\nafter", "{formula \na_1 \\\\\n*b*\n}{p after}"],
  ["before\n$$E = mc^2$$\nafter", "{p before}{formula E = mc^2}{p after}"],
  ["> \\[\n> a > b\n> \\]", "{quote {formula \na > b\n}}"],
  ["$$ and *a* $5", "{p $$ and {em a} $5}"],
  ["\\(still *a*", "{p (still {em a}}"],
  ["---", "{rule}"],
  ["[a](https://x.org/b_(c)) https://y.org/d_e.", "{p {link https://x.org/b_(c) a} {link https://y.org/d_e https://y.org/d_e}.}"],
  ["[a](javascript:alert(1)) ![b](data:text/html,x)", "{p [a](javascript:alert(1)) ![b](data:text/html,x)}"],
  ["![a *b*](https://x.org/c.png)!", "{p {link https://x.org/c.png a *b*}!}"],
  ["<img src=x onerror=alert(1)> <b>&nosuch; &; &constructor; &#0; &#xd800;", "{p <img src=x onerror=alert(1)> <b>&nosuch; &; &constructor; &#0; &#xd800;}"],
  ["a &lt; b &amp;&amp; c&nbsp;d &#8364; &#x20AC; `&lt;`", "{p a < b && c\u00a0d € € {code &lt;}}"],
  ["a<br>b<BR/>c<br />\nd", "{p a/b/c/d}"],
  ["| a |\n|---|\n| b<br>*c* |", "{left a;b/{em c}}"],
  ["H<sub>2</sub>O x<sup>a *b*</sup> <kbd>Ctrl</kbd> <sub>no end <sub onclick=x>y</sub", "{p H{sub 2}O x{sup a {em b}} {kbd Ctrl} <sub>no end <sub onclick=x>y</sub}"],
]) assert.equal(shown(source), expected);

for (const bad of ["javascript:alert(1)", " javascript:x", "data:text/html,x", "//x.org", "/a", "vbscript:x"])
  assert.equal(safe(bad), null);

// Any text can be read, every prefix of it too; leaves are in order and inside; the text is never lost.
let seed = 7;
const random = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
const parts = ["*", "**", "_", "`", "```", "\n", "\n\n", "- ", "1. ", "> ", "# ", "|", "|-|-|", "[", "](", ")", "a", "b c",
  " ", "  ", "    ", "~~", "\\", "$$", "\\(", "\\)", "\\[", "\\]", "\\|", "- [x] ", "<b>", "<u>", "</u>", "&lt;", "&", "![", "https://x", "---", "é😀"];
function leaves(node, found) {
  if (["text", "codespan", "entity"].includes(node.type)) found.push(node);
  if (node.type === "math" && !node.children) found.push(node);
  if (node.type === "code" || node.type === "formula") found.push(...node.lines);
  for (const each of [...(node.children ?? []), ...(node.items ?? []).flat(), ...(node.rows ?? []).flat(2)])
    leaves(each, found);
  return found;
}
for (let round = 0; round < 1500; round += 1) {
  const source = Array.from({ length: 1 + random(30) }, () => parts[random(parts.length)]).join("");
  const found = parse(source).flatMap((block) => leaves(block, []));
  let at = 0;
  const covered = new Set();
  for (const { start, end } of found) {
    assert.ok(start >= at && end >= start && end <= source.length, JSON.stringify(source));
    for (let i = start; i < end; i += 1) covered.add(i);
    at = end;
  }
  if (source.includes("```") || source.includes("|")) continue; // a fence names its language, a row ends at its columns
  [...source].reduce((i, sign) => {
    assert.ok(covered.has(i) || !/[abcé😀]/u.test(sign), `lost ${sign} of ${JSON.stringify(source)}`);
    return i + sign.length;
  }, 0);
}
const start = Date.now();
for (const part of ["*", "**a", "_a", "`", "[", "](", "> ", "- ", "|", "~~a", "[a](", "a*", "1. a\n", "> > - a\n", "a|b\n", "``a`", "https://", "$$a\n", "a\n\\[\n"])
  parse(part.repeat(20000));
assert.ok(Date.now() - start < 4000, `${Date.now() - start} ms`);

const turn = { text: "", drafted: [] };
for (const [text, from_draft] of [["a", false], ["b", true], ["", true], ["c", true], ["d", false], ["e", true]])
  add(turn, { text, from_draft });
assert.deepEqual(turn, { text: "abcde", drafted: [[1, 3], [4, 5]] });

// Code has the same lines and lengths, whatever its language; what is coloured is what it says.
for (const language of ["python", "html", "rust", "nosuch", "", "__proto__"]) {
  for (const code of ["", "\n", "a\r\nb\n\n", "<script>\nlet a = `${b}`;\n</script>\n# é😀", "def f(x):\n  '''\n  no end"]) {
    const lengths = kinds(code, language).map((line) => line.reduce((sum, { length }) => sum + length, 0));
    assert.deepEqual(lengths, code.split("\n").map((line) => line.length), `${language} ${code}`);
  }
}
const began = Date.now();
for (const language of ["java", "ini", "typescript", "csharp"]) kinds("a".repeat(15000), language);
assert.ok(Date.now() - began < 500, `${Date.now() - began} ms`);
assert.deepEqual(kinds("if x:  # why", "py")[0].filter(({ kind }) => kind), [
  { length: 2, kind: "keyword" },
  { length: 5, kind: "comment" },
]);

// A conversation as a tree: what is added follows what is shown, every version can be shown again.
const chat = { turns: [], last: null };
const texts = () => branches.path(chat).map(({ id }) => id).join("");
for (const id of "abcd") branches.add(chat, { id });
chat.last = "b";
for (const id of "ef") branches.add(chat, { id });
assert.equal(texts(), "abef");
assert.deepEqual(branches.versions(chat, chat.turns.find(({ id }) => id === "e")).map(({ id }) => id), ["c", "e"]);
branches.goTo(chat, "c");
assert.equal(texts(), "abcd");
branches.goTo(chat, null);
assert.equal(texts(), "abef");
branches.remove(chat, chat.turns.filter(({ id }) => "ef".includes(id)));
assert.equal(texts(), "abcd");
branches.remove(chat, [...chat.turns]);
assert.equal(texts(), "");

// Calls of tools come in parts; what was called is sent again with its results, also where there is none.
const called = { role: "assistant", text: "So:" };
addCall(called, { index: 0, id: "a", function: { name: "look", arguments: "" } });
addCall(called, { index: 0, function: { arguments: '{"at": 1}' } });
addCall(called, { index: 1, id: "b", function: { name: "go", arguments: "{}" } });
assert.deepEqual(called.calls.map((one) => one.name + one.arguments), ['look{"at": 1}', "go{}"]);
called.calls[0].result = "42";
const [asked, answered, ...told] = body([{ role: "user", text: "Hi" }, called], "", {}).messages;
assert.deepEqual(asked, { role: "user", content: "Hi" });
assert.deepEqual(answered.tool_calls.map((one) => one.function.name), ["look", "go"]);
assert.deepEqual(told.map((one) => [one.role, one.tool_call_id, one.content]), [
  ["tool", "a", "42"],
  ["tool", "b", "The call was not made."],
]);
const image = { type: "image", mimeType: "image/png", data: "AAAA" };
assert.equal(resultOf({ content: [{ type: "text", text: "a" }, image, { type: "resource", resource: { text: "b" } }] }), "a\n[image, image/png]\nb");
assert.equal(resultOf({}), "");

// Files: UTF-8, or Latin-1 as Windows writes it; no other bytes.
const bytes = (...given) => Uint8Array.from(given).buffer;
assert.equal(textOf(new TextEncoder().encode("né\r\nb").buffer), "né\nb");
assert.equal(textOf(bytes(0x6e, 0xe9, 0x0d, 0x0a, 0x62)), "né\nb");
assert.equal(textOf(bytes(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a)), null);
assert.equal(textOf(bytes(0x61, 0)), null);
assert.deepEqual(await read(new File(["x = 1\n"], "a.py")), { name: "a.py", text: "x = 1\n" });
await assert.rejects(read(new File(["%PDF-1.7"], "b.pdf")), /b.pdf is a PDF: pdftotext makes a text of it/);
const files = [{ name: "a.py", text: "x = 1\n```\n" }, { name: "b.txt", text: "ü" }];
assert.equal(whole({ text: "What is it?", files }), "What is it?\n\na.py:\n````py\nx = 1\n```\n````\n\nb.txt:\n```txt\nü\n```");
assert.equal(whole({ text: "", files: files.slice(1) }), "b.txt:\n```txt\nü\n```");
assert.equal(whole({ text: "a" }), "a");
assert.equal(size(files[0]), "2 lines, about 3 tokens");
assert.equal(size(files[1]), "1 line, about 1 token");

// Keys: with Ctrl or the command key everywhere, letters only where nothing is written.
const pressed = (key, more = {}, isWriting = false) => meant({ key, ...more }, isWriting);
assert.equal(pressed("k", { ctrlKey: true }, true), "search");
assert.equal(pressed("o", { metaKey: true, shiftKey: true }), "new");
assert.equal(pressed(":", { ctrlKey: true, shiftKey: true }, true), "copy");
assert.equal(pressed("?", { shiftKey: true }), "help");
assert.equal(pressed("/"), "write");
for (const key of ["?", "/"]) assert.equal(pressed(key, {}, true), null);
for (const other of [["k"], ["k", { ctrlKey: true, altKey: true }], ["Escape"], ["o", { ctrlKey: true }]]) {
  assert.equal(pressed(...other), null);
}
assert.equal(new Set(KEYS.map(({ keys }) => keys)).size, KEYS.length);

// The form of an answer, as a request says it.
assert.deepEqual(form({}), {});
assert.deepEqual(form({ stop: "a\n\n b\n", thinking: "off" }), { stop: ["a", " b"], enable_thinking: false });
assert.deepEqual(form({ schema: '{"type": "object"}' }).response_format.json_schema.schema, { type: "object" });
assert.throws(() => form({ schema: "{" }), SyntaxError);
