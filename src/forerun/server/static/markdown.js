// Markdown as a tree of plain objects. Every leaf is a range of the source ({start, end}), so a renderer can
// tell which tokens it came from, and nothing is ever turned into HTML text.
//
// What language models write is read: headings, paragraphs, lists with tasks, quotes, fenced code, tables, rules,
// formulas; in a line emphasis, code, links, formulas, and of HTML what html.js reads; the rest of it is text. Every
// prefix of a text can be read, and the time is linear.

import { html } from "./html.js";

const MAX_DEPTH = 8;
const MAX_MATH = 100; // lines
const FENCE = /^ {0,3}(`{3,}|~{3,}) *([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?: +|$)/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const MARKER = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const TASK = /^\[([ xX])\] +/;
const MATH = /^ {0,3}(\$\$|\\\[)/;
const MATH_ENDS = { "$$": "$$", "\\[": "\\]", "\\(": "\\)" };
const ENVIRONMENT = /^ {0,3}\\begin\{((?:align|alignat|equation|gather|multline|cases|[pbvBV]?matrix|array)\*?)\}/;
const CELL = /^ *:?-+:? *$/;

/** The blocks of a text. Each has a type, and start and end in the source. */
export function parse(source) {
  const lines = [];
  let start = 0;
  for (const text of source.split("\n")) {
    lines.push({ start, end: start + text.length });
    start += text.length + 1;
  }
  return blocks(source, lines, 0);
}

function blocks(source, lines, depth) {
  const found = [];
  const text = (i) => source.slice(lines[i].start, lines[i].end);
  for (let i = 0; i < lines.length; ) {
    const line = text(i);
    if (!line.trim()) {
      i += 1;
      continue;
    }
    const first = i;
    const [block, next] =
      fence(lines, i, line, text) ??
      math(source, lines, i, line, text) ??
      heading(source, lines, i, line) ??
      (RULE.test(line) ? [{ type: "rule" }, i + 1] : null) ??
      (depth < MAX_DEPTH ? quote(source, lines, i, text, depth) : null) ??
      (depth < MAX_DEPTH ? list(source, lines, i, text, depth) : null) ??
      table(source, lines, i, text) ??
      paragraph(source, lines, i, text, depth);
    i = next;
    found.push({ ...block, start: lines[first].start, end: lines[i - 1].end });
  }
  return found;
}

function fence(lines, i, line, text) {
  const open = FENCE.exec(line);
  if (!open) return null;
  const [, mark, language] = open;
  const body = [];
  for (i += 1; i < lines.length; i += 1) {
    const inner = text(i).trim();
    if (inner.length >= mark.length && inner === mark[0].repeat(inner.length)) {
      return [{ type: "code", language, lines: body }, i + 1];
    }
    body.push(lines[i]);
  }
  return [{ type: "code", language, lines: body }, i]; // it is still being written
}

/** Mathematics on lines of its own, up to its closing mark; none if that does not come before an empty line. */
function math(source, lines, i, line, text) {
  const open = MATH.exec(line);
  if (!open) return environment(lines, i, line, text);
  const body = [];
  const most = Math.min(lines.length, i + MAX_MATH);
  for (let last = i; last < most && (last === i || text(last).trim()); last += 1) {
    if (last > i && MATH.exec(text(last))?.[1] === "\\[") return null; // none is within another
    const start = lines[last].start + (last === i ? open[0].length : 0);
    const close = source.slice(start, lines[last].end).indexOf(MATH_ENDS[open[1]]);
    body.push({ start, end: close < 0 ? lines[last].end : start + close });
    if (close < 0) continue;
    if (source.slice(start + close + 2, lines[last].end).trim()) return null; // a paragraph goes on
    return [{ type: "formula", lines: body }, last + 1];
  }
  return null;
}

/** `\begin{align}` to `\end{align}`, as models also write it without marks around. */
function environment(lines, i, line, text) {
  const open = ENVIRONMENT.exec(line);
  if (!open) return null;
  const ending = `\\end{${open[1]}}`;
  const most = Math.min(lines.length, i + MAX_MATH);
  for (let last = i; last < most && text(last).trim(); last += 1) {
    if (text(last).trimEnd().endsWith(ending)) return [{ type: "formula", lines: lines.slice(i, last + 1) }, last + 1];
  }
  return null;
}

function heading(source, lines, i, line) {
  const found = HEADING.exec(line);
  if (!found) return null;
  const children = inline(source, lines[i].start + found[0].length, lines[i].end);
  return [{ type: "heading", level: found[1].length, children }, i + 1];
}

function quote(source, lines, i, text, depth) {
  const inner = [];
  for (let found; i < lines.length && (found = QUOTE.exec(text(i))); i += 1) {
    inner.push({ start: lines[i].start + found[0].length, end: lines[i].end });
  }
  return inner.length ? [{ type: "quote", children: blocks(source, inner, depth + 1) }, i] : null;
}

function list(source, lines, i, text, depth) {
  const begin = MARKER.exec(text(i));
  if (!begin) return null;
  const kind = kindOf(begin[2]);
  const items = [];
  const tasks = [];
  let own = null;
  let content = 0;
  let wasBlank = false;
  for (; i < lines.length; i += 1) {
    const line = text(i);
    const indent = line.length - line.trimStart().length;
    const marker = MARKER.exec(line);
    if (!line.trim()) {
      own.push({ start: lines[i].end, end: lines[i].end });
      wasBlank = true;
      continue;
    }
    if (marker && (!own || indent < content) && !RULE.test(line)) {
      if (kindOf(marker[2]) !== kind || indent < begin[1].length) break;
      const start = lines[i].start + marker[0].length;
      const task = TASK.exec(source.slice(start, lines[i].end));
      tasks.push(task ? task[1] !== " " : null);
      own = [{ start: start + (task?.[0].length ?? 0), end: lines[i].end }];
      items.push(own);
      content = indent + Math.min(marker[2].length + 1, 3);
    } else if (indent >= content || (!wasBlank && !startsBlock(line))) {
      own.push({ start: lines[i].start + Math.min(indent, content), end: lines[i].end });
    } else {
      break;
    }
    wasBlank = false;
  }
  const isOrdered = kind !== "-";
  const number = isOrdered ? parseInt(begin[2], 10) : null;
  const children = items.map((each) => blocks(source, each, depth + 1));
  return [{ type: "list", isOrdered, number, items: children, tasks }, i];
}

function kindOf(marker) {
  return "-*+".includes(marker) ? "-" : marker.at(-1);
}

function table(source, lines, i, text) {
  if (i + 1 >= lines.length || !text(i).includes("|") || !text(i + 1).includes("-")) return null;
  const head = cells(source, lines[i]);
  const marks = cells(source, lines[i + 1]).map(({ start, end }) => source.slice(start, end));
  if (marks.length !== head.length || !marks.every((mark) => CELL.test(mark))) return null;
  const align = marks.map((mark) => {
    const [left, right] = [mark.trim().startsWith(":"), mark.trim().endsWith(":")];
    return right ? (left ? "center" : "right") : "left";
  });
  const rows = [head];
  for (i += 2; i < lines.length && text(i).includes("|"); i += 1) {
    rows.push(cells(source, lines[i]).slice(0, head.length));
  }
  const read = (row) => row.map(({ start, end }) => unescaped(source, inline(source, start, end)));
  return [{ type: "table", align, rows: rows.map(read) }, i];
}

function cells(source, { start, end }) {
  while (start < end && source[start] === " ") start += 1;
  while (end > start && source[end - 1] === " ") end -= 1;
  if (source[start] === "|") start += 1;
  if (end > start && source[end - 1] === "|" && source[end - 2] !== "\\") end -= 1;
  const found = [];
  for (let from = start; ; ) {
    let to = source.indexOf("|", from);
    while (to > 0 && to < end && source[to - 1] === "\\") to = source.indexOf("|", to + 1);
    if (to < 0 || to > end) to = end;
    const [first, last] = [from, to];
    const inner = source.slice(first, last);
    const left = inner.length - inner.trimStart().length;
    found.push({ start: first + left, end: Math.max(first + left, first + inner.trimEnd().length) });
    if (to >= end) return found;
    from = to + 1;
  }
}

/** Leave the backslash of an escaped pipe out of the code of a cell, where no other escape counts. */
function unescaped(source, nodes) {
  for (const node of nodes) {
    if (node.type === "codespan") {
      node.cuts = [...source.slice(node.start, node.end).matchAll(/\\\|/g)].map((hit) => node.start + hit.index);
    }
    unescaped(source, node.children ?? []);
  }
  return nodes;
}

function startsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line);
}

function paragraph(source, lines, i, text, depth) {
  const children = [];
  const first = i;
  do {
    if (i > first && children.at(-1)?.type !== "break") children.push({ type: "break" });
    const line = text(i);
    const start = lines[i].start + line.length - line.trimStart().length;
    children.push(...inline(source, start, lines[i].end));
    i += 1;
  } while (
    i < lines.length &&
    text(i).trim() &&
    !endsParagraph(text(i), depth) &&
    !math(source, lines, i, text(i), text)
  );
  return [{ type: "paragraph", children }, i];
}

function endsParagraph(line, depth) {
  return startsBlock(line) || (depth < MAX_DEPTH && MARKER.test(line) && line.trim().length > 2);
}

const SPECIAL = /[\\`*_~[$<&]|!\[|https?:\/\//g;
const LINK = /\[([^\]\n]{1,400})\]\(\s*([^()\s]{1,2000}(?:\([^()\s]{0,200}\)[^()\s]{0,200})?)(?: "[^"\n]{0,200}")?\s*\)/y;
const BARE = /https?:\/\/[^\s<>()[\]"'`*|]*[^\s<>()[\]"'`*|.,;:!?]/y;
const PUNCTUATION = /[!-/:-@[-`{-~]/;

/** The parts of a line. */
function inline(source, start, end, depth = 0) {
  const found = [];
  const absent = new Set();
  let plain = start;
  const line = source.slice(start, end); // to search the whole text for each line would take the square of its time
  let next = 0;
  for (let hit; depth < MAX_DEPTH && (SPECIAL.lastIndex = next, hit = SPECIAL.exec(line)); ) {
    const at = start + hit.index;
    const match = special(source, at, start, end, depth, absent);
    if (match) {
      if (at > plain) found.push({ type: "text", start: plain, end: at });
      found.push(match.node);
      plain = match.end;
    }
    next = (match ? match.end : at + 1) - start;
  }
  if (end > plain) found.push({ type: "text", start: plain, end });
  return found;
}

function special(source, at, start, end, depth, absent) {
  const mark = source[at];
  const open = source.slice(at, at + 2);
  if (open in MATH_ENDS) {
    const length = absent.has(open) ? -1 : source.slice(at + 2, end).indexOf(MATH_ENDS[open]);
    if (length > 0) {
      const close = at + 2 + length;
      return { node: { type: "math", isLarge: open !== "\\(", start: at + 2, end: close }, end: close + 2 };
    }
    absent.add(open);
    if (mark === "$") return null;
  }
  if (mark === "$") return dollars(source, at, end, absent);
  if (mark === "\\") {
    if (at + 1 >= end || !PUNCTUATION.test(source[at + 1])) return null;
    return { node: { type: "text", start: at + 1, end: at + 2 }, end: at + 2 };
  }
  if (mark === "`") return codeSpan(source, at, end, absent);
  if (mark === "[" || mark === "h") return link(source, at, end);
  if (mark === "!") return link(source, at + 1, end); // a picture, which the page's policy does not fetch
  if (mark === "<" || mark === "&") {
    return html(source, at, end, absent, (from, to) => inline(source, from, to, depth + 1));
  }
  const sign = source.startsWith(mark + mark, at) ? mark + mark : mark;
  return sign === "~" ? null : emphasis(source, at, start, end, depth, sign, absent);
}

/** `$x$`, whose marks touch the formula; sums of money do not: "$5 and $10". Spans of code are found first. */
function dollars(source, at, end, absent) {
  if (absent.has("$") || at < absent.moneyUpTo) return null;
  if (at + 1 >= end || /\s/.test(source[at + 1]) || isWord(source[at - 1])) return null;
  const mark = /[$`]/g;
  mark.lastIndex = at + 1;
  for (let hit; (hit = mark.exec(source)) && hit.index < end; ) {
    const close = hit.index;
    if (hit[0] === "`") {
      if (codeSpan(source, close, end, absent)) {
        absent.moneyUpTo = close; // none of the dollars before it has another to close it
        return null;
      }
      while (source[mark.lastIndex] === "`") mark.lastIndex += 1;
      continue;
    }
    if (/[\s\\]/.test(source[close - 1]) || /[\d$]/.test(source[close + 1] ?? "")) continue;
    return { node: { type: "math", isLarge: false, start: at + 1, end: close }, end: close + 1 };
  }
  absent.add("$");
  return null;
}

function codeSpan(source, at, end, absent) {
  let after = at;
  while (after < end && source[after] === "`") after += 1;
  const sign = source.slice(at, after);
  const close = absent.has(sign) ? -1 : source.indexOf(sign, after);
  if (close < 0 || close + sign.length > end) {
    absent.add(sign);
    return null;
  }
  return { node: { type: "codespan", start: after, end: close }, end: close + sign.length };
}

function link(source, at, end) {
  const pattern = source[at] === "[" ? LINK : BARE;
  pattern.lastIndex = at;
  const found = pattern.exec(source);
  if (!found || pattern.lastIndex > end) return null;
  const after = at + found[0].length;
  if (pattern === BARE) {
    const children = [{ type: "text", start: at, end: after }];
    return { node: { type: "link", href: found[0], children }, end: after };
  }
  const href = safe(found[2]);
  if (!href) return null;
  const children = inline(source, at + 1, at + 1 + found[1].length, MAX_DEPTH);
  return { node: { type: "link", href, children }, end: after };
}

/** A link's address if it leads to the web or a mailbox, else null. */
export function safe(address) {
  return /^(https?:\/\/|mailto:)/i.test(address) ? address : null;
}

const isWord = (sign) => sign !== undefined && /[\p{L}\p{N}]/u.test(sign);

function emphasis(source, at, start, end, depth, sign, absent) {
  const from = at + sign.length;
  const underlined = sign[0] === "_";
  if (absent.has(sign) || from >= end || /\s/.test(source[from])) return null;
  if (underlined && at > start && isWord(source[at - 1])) return null;
  for (let close = source.indexOf(sign, from); ; close = source.indexOf(sign, close + 1)) {
    if (close < 0 || close + sign.length > end) {
      absent.add(sign);
      return null;
    }
    if (sign.length === 1 && source[close + 1] === sign && close + 1 < end) {
      close += 1; // a pair is not a single sign
      continue;
    }
    while (source[close + sign.length] === sign[0] && close + sign.length < end) close += 1;
    const isClosing = close > from && !/\s/.test(source[close - 1]);
    if (isClosing && !(underlined && isWord(source[close + sign.length]))) {
      const type = sign === "~~" ? "del" : sign.length === 2 ? "strong" : "em";
      const children = inline(source, from, close, depth + 1);
      return { node: { type, children }, end: close + sign.length };
    }
  }
}
