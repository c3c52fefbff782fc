// Formulas in TeX as MathML, which browsers draw and screen readers speak. `temml` is a script of index.html.

const MOST = 5_000; // letters
const LARGEST = [30, 300]; // em and pt: a formula may name the size of its parts

/** Write a formula into an empty element. False where it cannot be read: there is nothing in it then. */
export function typeset(text, element, isBlock) {
  if (text.length > MOST) return false;
  try {
    temml.render(text, element, { displayMode: isBlock, throwOnError: true, maxSize: LARGEST });
  } catch {
    element.replaceChildren();
    return false;
  }
  return true;
}
