/** News: one line that is said for a few seconds. Knows its element alone. */

const SHOWN_S = 8;

export function toaster(element) {
  let timer = 0;
  return (text) => {
    element.textContent = text;
    element.hidden = false;
    clearTimeout(timer);
    timer = setTimeout(() => (element.hidden = true), SHOWN_S * 1000);
  };
}
