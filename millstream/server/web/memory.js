/** What this browser remembers between visits: prompts, saved and left streams, knobs, the theme. Every list has its bound. */

const PROMPTS = "millstream.prompts";
const SAVES = "millstream.saves";
const LEFT = "millstream.left";
const RECORDING = "millstream.recording";
const BINDINGS = "millstream.midi";
const MAX_PROMPTS = 50;
const MAX_SAVES = 12;
const MAX_LEFT = 8;
const MAX_BINDINGS = 128;
const KEPT_S = 120;

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

/** Knobs and what each moves: one control; a control may have several. */
export const bindings = () => read(BINDINGS, []);
export const forgetBinding = (knob) => write(BINDINGS, bindings().filter((bound) => bound.knob !== knob));
export const rememberBinding = (bound) =>
  write(BINDINGS, [...bindings().filter(({ knob }) => knob !== bound.knob), bound].slice(-MAX_BINDINGS));

export const theme = () => read("millstream.theme", null);
export const rememberTheme = (name) => write("millstream.theme", name);

/**
 * Streams that tabs of this browser have left by closing or reloading. The server keeps them for two minutes; the next tab
 * to open takes up the latest, so that each has its own.
 */
export const leftBehind = {
  /** `prompt` is of one that stands in line, and has no picture to say it. */
  put: (session, prompt = "") => write(LEFT, [...fresh(), { session, prompt, at: Date.now() }].slice(-MAX_LEFT)),
  /** The latest, as {session, prompt}; null where there is none. */
  take() {
    const left = fresh();
    const latest = left.pop();
    write(LEFT, left);
    return latest ?? null;
  },
};

const fresh = () => read(LEFT, []).filter(({ at }) => Date.now() - at < KEPT_S * 1000);

/** This tab's recording, running or ended, as {url, name}: what a reload must not lose. */
export const recording = {
  get() {
    try {
      return JSON.parse(sessionStorage.getItem(RECORDING));
    } catch {
      return null;
    }
  },
  set: (made) => sessionStorage.setItem(RECORDING, JSON.stringify(made)),
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
