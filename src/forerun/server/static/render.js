// A text as elements: markdown with drafted tokens tinted, or as it is. Only text nodes and elements made by name.

import { kinds } from "./code.js";
import { typeset } from "./formula.js";
import { parse } from "./markdown.js";

/** The direction of a text is that of its first letters. */
const AUTO = { dir: "auto" };

/** An element with properties and children; `on...` are listeners, `data` its data attributes. */
export function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name.includes("-") || name === "role") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A button that copies what `text()` gives, and says so. */
export function copyButton(text) {
  const button = make("button", { type: "button", className: "quiet", textContent: "Copy" });
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text())) ? "Copied" : "Not possible";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", { value: text, className: "offscreen" }); // no https: the old way
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** Shows a text that grows. Blocks that are complete keep their elements, so a selection stays. */
export class Markdown {
  constructor(element) {
    this.element = element;
    this.shown = [];
  }

  /** `drafted` are the ranges of the text that had been guessed, in order. */
  show(source, drafted) {
    const blocks = parse(source);
    const keep = this.shown.findIndex((old, i) => !isSame(old, blocks[i], blocks.length - 1 === i));
    const count = keep < 0 ? this.shown.length : keep;
    while (this.element.childNodes.length > count) this.element.lastChild.remove();
    const painter = new Painter(source, drafted);
    for (const block of blocks.slice(count)) this.element.append(painter.block(block));
    this.shown = blocks;
  }

  /** Forget what is shown: the text is another one. */
  clear() {
    this.element.replaceChildren();
    this.shown = [];
  }
}

function isSame(old, block, isLast) {
  return !isLast && block && old.type === block.type && old.start === block.start && old.end === block.end;
}

class Painter {
  constructor(source, drafted) {
    this.source = source;
    this.drafted = drafted;
  }

  block(block) {
    switch (block.type) {
      case "code":
        return this.code(block);
      case "heading":
        return make(`h${Math.min(block.level + 1, 6)}`, AUTO, ...this.line(block.children));
      case "formula":
        return make("div", { className: "wide", tabIndex: 0 }, this.formula(block.lines, true));
      case "rule":
        return make("hr");
      case "quote":
        return make("blockquote", AUTO, ...block.children.map((each) => this.block(each)));
      case "list":
        return this.list(block);
      case "table":
        return this.table(block);
      default:
        return make("p", AUTO, ...this.line(block.children));
    }
  }

  lines(lines) {
    return lines.map(({ start, end }) => this.source.slice(start, end)).join("\n");
  }

  code({ language, lines }) {
    const text = this.lines(lines);
    const found = kinds(text, language);
    const body = make("code");
    for (const [at, { start }] of lines.entries()) {
      let from = start;
      for (const { length, kind } of found[at]) {
        const inner = this.text(from, from + length);
        body.append(...(kind ? [make("span", { className: `word-${kind}` }, ...inner)] : inner));
        from += length;
      }
      body.append("\n");
    }
    const bar = make("div", { className: "bar" }, make("span", {}, language || "text"), copyButton(() => text));
    return make("div", { className: "code", dir: "ltr" }, bar, make("pre", { tabIndex: 0 }, body));
  }

  /** A formula, tinted where all of it was drafted; its source where it cannot be read. */
  formula(lines, isBlock) {
    const [start, end] = [lines[0].start, lines.at(-1).end];
    const isDrafted = this.isDrafted(start, end);
    const made = make(isDrafted ? "mark" : "span", { className: isDrafted ? "drafted" : "", role: "presentation" });
    if (typeset(this.lines(lines), made, isBlock)) return made;
    return make("code", { className: "math", dir: "ltr" }, ...this.text(start, end));
  }

  list({ isOrdered, number, items, tasks }) {
    const made = make(isOrdered ? "ol" : "ul", AUTO);
    if (isOrdered) made.start = number;
    for (const [at, item] of items.entries()) {
      const [first, ...rest] = item;
      const isPlain = first?.type === "paragraph";
      const head = isPlain ? this.line(first.children) : first ? [this.block(first)] : [];
      const [isTask, checked] = [tasks[at] !== null, tasks[at]];
      const label = checked ? "done" : "to do";
      const box = isTask ? make("input", { type: "checkbox", disabled: true, checked, "aria-label": label }) : null;
      made.append(make("li", { dir: "auto", className: isTask ? "task" : "" }, box, ...head, ...rest.map((each) => this.block(each))));
    }
    return made;
  }

  table({ align, rows }) {
    const row = (cells, tag) =>
      make("tr", {}, ...cells.map((cell, i) => make(tag, { className: align[i], dir: "auto" }, ...this.line(cell))));
    const [head, ...body] = rows;
    const made = make("table", {}, make("thead", {}, row(head, "th")));
    made.append(make("tbody", {}, ...body.map((cells) => row(cells, "td"))));
    return make("div", { className: "wide", tabIndex: 0 }, made);
  }

  line(nodes) {
    return nodes.flatMap((node) => {
      switch (node.type) {
        case "text":
          return this.text(node.start, node.end);
        case "break":
          return [make("br")];
        case "codespan":
          return [make("code", {}, ...this.span(node))];
        case "entity":
          return this.isDrafted(node.start, node.end) ? [drafted(node.text)] : [node.text];
        case "math":
          return [this.formula([node], node.isLarge)];
        case "link": {
          const own = { href: node.href, target: "_blank", rel: "noopener noreferrer" };
          return [make("a", own, ...this.line(node.children))];
        }
        default:
          return [make(node.type, {}, ...this.line(node.children))];
      }
    });
  }

  /** The code of a line, without the backslashes of `cuts`. */
  span({ start, end, cuts = [] }) {
    const starts = [start, ...cuts.map((cut) => cut + 1)];
    return starts.flatMap((from, at) => this.text(from, cuts[at] ?? end));
  }

  /** A range of the source, its drafted parts marked. */
  text(start, end) {
    const parts = [];
    for (let i = this.firstAfter(start); start < end; i += 1) {
      const [from, to] = this.drafted[i] ?? [end, end];
      if (from > start) parts.push(this.source.slice(start, Math.min(from, end)));
      if (from >= end) break;
      const inner = this.source.slice(Math.max(from, start), Math.min(to, end));
      parts.push(drafted(inner));
      start = to;
    }
    return parts;
  }

  /** Whether all of a range was drafted. */
  isDrafted(start, end) {
    const [from, to] = this.drafted[this.firstAfter(start)] ?? [end, end];
    return from <= start && to >= end;
  }

  /** The first drafted range that ends after a place. */
  firstAfter(place) {
    let [low, high] = [0, this.drafted.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.drafted[middle][1] > place) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

const drafted = (text) => make("mark", { className: "drafted", role: "presentation" }, text); // it cuts no sentence
