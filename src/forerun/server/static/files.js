// Files that are dropped, pasted or chosen: texts go with the message, all else is refused in words.

const MOST = 1 << 20; // bytes; a server reads bodies of 4 MB, a model far less
const CONTROL = /[\0-\x08\x0e-\x1a\x7f-\x9f]/; // but tabs, line ends, form feeds and escapes
const TICKS = /`{3,}/g;
const PDF = [..."%PDF-"].map((sign) => sign.charCodeAt(0));
const LETTERS = 4; // of a token, about

/** The text of a file, as {name, text}. Throws an Error that says why there is none. */
export async function read(file) {
  if (file.size > MOST) throw new Error(`${file.name} has ${(file.size / MOST).toFixed(1)} MiB: files of up to 1 MiB are read.`);
  const bytes = await file.arrayBuffer().catch(() => {
    throw new Error(`${file.name} cannot be read.`); // a folder, or it is gone
  });
  if (isPdf(bytes)) throw new Error(`${file.name} is a PDF: pdftotext makes a text of it, or copy from a viewer and paste here.`);
  const text = textOf(bytes);
  if (text === null) throw new Error(`${file.name} is not text: only texts are read here.`);
  return { name: file.name, text };
}

function isPdf(bytes) {
  const start = new Uint8Array(bytes, 0, Math.min(PDF.length, bytes.byteLength));
  return PDF.every((code, at) => start[at] === code);
}

/** The text of bytes, UTF-8 or else Latin-1 as Windows writes it; null where letters that no text has are in it. */
export function textOf(bytes) {
  let [text, never] = ["", /\0/];
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    [text, never] = [new TextDecoder("windows-1252").decode(bytes), CONTROL];
  }
  return never.test(text) ? null : text.replace(/\r\n?/g, "\n");
}

/** A message as it is sent: what was written, and each file as code under its name. */
export const whole = ({ text, files }) => [text, ...(files ?? []).map(quoted)].filter(Boolean).join("\n\n");

function quoted({ name, text }) {
  const fence = "`".repeat(Math.max(2, ...(text.match(TICKS) ?? []).map((ticks) => ticks.length)) + 1);
  const language = /\.(\w+)$/.exec(name)?.[1] ?? "";
  return `${name}:\n${fence}${language}\n${text.replace(/\n?$/, "\n")}${fence}`;
}

/** How much a file is: lines, and about how many tokens. */
export function size({ text }) {
  const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
  const lines = text.replace(/\n$/, "").split("\n").length;
  return `${count(lines, "line")}, about ${count(Math.ceil(text.length / LETTERS), "token")}`;
}
