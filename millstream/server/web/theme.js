/** Dark and light: as the system has it, or as chosen here. */

import * as memory from "./memory.js";

const root = document.documentElement;
const systemIsLight = matchMedia("(prefers-color-scheme: light)");

function apply(name) {
  if (name) root.dataset.theme = name;
}

export function toggleTheme() {
  const now = root.dataset.theme ?? (systemIsLight.matches ? "light" : "dark");
  const next = now === "dark" ? "light" : "dark";
  apply(next);
  memory.rememberTheme(next);
}

apply(memory.theme());
