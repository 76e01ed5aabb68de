/** The keyboard: one table, used for what keys do and for what the help says. */

export const TABLE = [
  { keys: ["/"], action: "focusPrompt", says: "go to the prompt" },
  { shown: "Enter", says: "send the prompt" },
  { shown: "Ctrl Enter", says: "send it with a cut" },
  { shown: "↑ ↓", says: "earlier and later prompts" },
  { shown: "← →", says: "in the strip: earlier and later chunks" },
  { shown: "Esc", says: "leave the prompt" },
  { keys: [" "], shown: "Space", action: "pause", says: "pause or resume" },
  { keys: ["c"], action: "cut", says: "a new picture, the same prompt" },
  { keys: ["b"], action: "fork", says: "fork: a branch beside the stream" },
  { keys: ["p"], action: "preview", says: "preview other futures" },
  { keys: ["1", "2", "3", "4"], shown: "1 – 4", action: "mode", says: "recompute, blend, cut, keep" },
  { keys: ["n"], action: "seed", says: "a new seed" },
  { keys: ["r"], action: "record", says: "record or stop recording" },
  { keys: ["s"], action: "save", says: "save the stream" },
  { keys: ["f"], action: "fullscreen", says: "full screen" },
  { keys: ["t"], action: "theme", says: "dark or light" },
  { keys: ["?"], action: "help", says: "this help" },
];

const TYPING = "input:not([type=radio], [type=checkbox], [type=range]), textarea, select";
const PRESSES_ITSELF = "button, a, summary, input"; // Space on these means what it always means

/** @param actions name → function, the names being those of `TABLE`; keys of other names do nothing */
export function listen(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented) return; // it steers
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches(TYPING)) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.key === " " && event.target.matches(PRESSES_ITSELF)) return;
    const row = TABLE.find(({ keys }) => keys?.includes(event.key.toLowerCase()));
    if (!row || !actions[row.action]) return;
    event.preventDefault();
    actions[row.action](event.key);
  });
}

/** @param steering a row before all others, {shown, says}; null: none */
export function describe(list, steering = null) {
  list.replaceChildren();
  for (const { keys, shown, says } of steering ? [steering, ...TABLE] : TABLE) {
    const [term, meaning] = [document.createElement("dt"), document.createElement("dd")];
    const key = document.createElement("kbd");
    key.textContent = shown ?? keys[0].toUpperCase();
    term.append(key);
    meaning.textContent = says;
    list.append(term, meaning);
  }
}
