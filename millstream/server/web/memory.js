/** What this browser remembers between visits: prompts, saved streams, the theme. Every list has its bound. */

const PROMPTS = "millstream.prompts";
const SAVES = "millstream.saves";
const MAX_PROMPTS = 50;
const MAX_SAVES = 12;

function read(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise; // blocked or damaged storage is an empty one
  }
}

function write(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // a browser that stores nothing only forgets
  }
}

export const prompts = () => read(PROMPTS, []);
export const rememberPrompt = (text) => write(PROMPTS, [...prompts().filter((old) => old !== text), text].slice(-MAX_PROMPTS));

export const saves = () => read(SAVES, []);
export const rememberSave = (save) => write(SAVES, [save, ...saves()].slice(0, MAX_SAVES));
export const forgetSave = (snapshot) => write(SAVES, saves().filter((save) => save.snapshot !== snapshot));

export const theme = () => read("millstream.theme", null);
export const rememberTheme = (name) => write("millstream.theme", name);

/** The session of this tab, for a reload to come back to. A new tab, even a duplicated one, starts its own. */
export const session = {
  get() {
    const [visit] = performance.getEntriesByType("navigation");
    return visit?.type === "reload" ? sessionStorage.getItem("millstream.session") : null;
  },
  set: (id) => sessionStorage.setItem("millstream.session", id),
  clear: () => sessionStorage.removeItem("millstream.session"),
};

export const key = {
  /** From the address (`#key=…`), which is tidied at once, or from this tab. */
  get() {
    const given = new URLSearchParams(location.hash.slice(1)).get("key");
    if (given) {
      key.set(given);
      history.replaceState(null, "", location.pathname + location.search);
    }
    return sessionStorage.getItem("millstream.key") ?? "";
  },
  set: (text) => sessionStorage.setItem("millstream.key", text),
};
