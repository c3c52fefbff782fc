// Files that are dropped, pasted or chosen: texts are read into the message, all else is refused in words.

const MOST = 1 << 20; // bytes; a server reads bodies of 4 MB, a model far less
const CONTROL = /[\0-\x08\x0e-\x1a\x7f-\x9f]/; // but tabs, line ends, form feeds and escapes
const TICKS = /`{3,}/g;

/** The text of a file as code under its name. Throws an Error that says why there is none. */
export async function quoted(file) {
  if (file.size > MOST) throw new Error(`${file.name} has ${(file.size / MOST).toFixed(1)} MiB: files of up to 1 MiB are read.`);
  const bytes = await file.arrayBuffer().catch(() => {
    throw new Error(`${file.name} cannot be read.`); // a folder, or it is gone
  });
  const text = textOf(bytes);
  if (text === null) throw new Error(`${file.name} is not text: only texts are read here.`);
  const fence = "`".repeat(Math.max(2, ...(text.match(TICKS) ?? []).map((ticks) => ticks.length)) + 1);
  const language = /\.(\w+)$/.exec(file.name)?.[1] ?? "";
  return `${file.name}:\n${fence}${language}\n${text.replace(/\n?$/, "\n")}${fence}`;
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
