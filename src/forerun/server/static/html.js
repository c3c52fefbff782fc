// The little HTML that models write within Markdown: ends of lines, entities, and marks of words without attributes.

const BREAK = /<br *\/?>/iy;
const MARK = /<(sub|sup|kbd|u)>/y;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|([a-zA-Z]\w{1,15}));/y;
const NAMED = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", ensp: "\u2002", emsp: "\u2003", thinsp: "\u2009", shy: "\u00ad",
  copy: "©", reg: "®", trade: "™", hellip: "…", mdash: "—", ndash: "–", lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”",
  laquo: "«", raquo: "»", bull: "•", middot: "·", sect: "§", para: "¶", dagger: "†", deg: "°", prime: "′", Prime: "″",
  plusmn: "±", times: "×", divide: "÷", minus: "−", ne: "≠", le: "≤", ge: "≥", asymp: "≈", equiv: "≡", infin: "∞", radic: "√",
  sum: "∑", prod: "∏", int: "∫", part: "∂", nabla: "∇", isin: "∈", notin: "∉", cap: "∩", cup: "∪", sub: "⊂", sube: "⊆",
  forall: "∀", exist: "∃", and: "∧", or: "∨", not: "¬", empty: "∅", larr: "←", rarr: "→", uarr: "↑", darr: "↓", harr: "↔",
  lArr: "⇐", rArr: "⇒", hArr: "⇔", frac12: "½", frac14: "¼", frac34: "¾", sup1: "¹", sup2: "²", sup3: "³", micro: "µ",
  euro: "€", pound: "£", yen: "¥", cent: "¢", alpha: "α", beta: "β", gamma: "γ", delta: "δ", epsilon: "ε", theta: "θ",
  lambda: "λ", mu: "μ", pi: "π", rho: "ρ", sigma: "σ", tau: "τ", phi: "φ", omega: "ω", Delta: "Δ", Sigma: "Σ", Omega: "Ω",
  check: "✓", cross: "✗", star: "☆", hearts: "♥", lsqb: "[", rsqb: "]", lbrack: "[", rbrack: "]", lbrace: "{", rbrace: "}",
  vert: "|", ast: "*", num: "#", lowbar: "_", grave: "`", bsol: "\\", sol: "/", colon: ":", excl: "!", quest: "?", dollar: "$",
};

function at(pattern, source, place, end) {
  pattern.lastIndex = place;
  const found = pattern.exec(source);
  return found && pattern.lastIndex <= end ? found : null;
}

/** What stands at a `<` or `&` of a line that ends at `end`; null where it is a sign like any other. `inline` reads the
 *  parts of a range; `absent` collects what does not occur later in the line. */
export function html(source, place, end, absent, inline) {
  const entity = at(ENTITY, source, place, end);
  if (entity) {
    const text = sign(entity);
    const after = place + entity[0].length;
    return text && { node: { type: "entity", start: place, end: after, text }, end: after };
  }
  const line = at(BREAK, source, place, end);
  if (line) return { node: { type: "break" }, end: place + line[0].length };
  const open = at(MARK, source, place, end);
  const ending = open && `</${open[1]}>`;
  if (!open || absent.has(ending)) return null;
  const from = place + open[0].length;
  const length = source.slice(from, end).indexOf(ending);
  if (length < 0) {
    absent.add(ending);
    return null;
  }
  const close = from + length;
  return { node: { type: open[1], children: inline(from, close) }, end: close + ending.length };
}

function sign([, decimal, hex, name]) {
  if (name) return Object.hasOwn(NAMED, name) ? NAMED[name] : null;
  const code = decimal ? Number(decimal) : parseInt(hex, 16);
  const isOne = code > 31 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return isOne ? String.fromCodePoint(code) : null;
}
