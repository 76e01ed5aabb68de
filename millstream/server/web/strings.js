/** What people are told, in one place: the states of a stream, its troubles and its changes. Plain functions to text. */

const CHIPS = {
  idle: "ready",
  connecting: "connecting",
  waiting: "in line",
  live: "live",
  paused: "paused",
  lost: "reconnecting",
  ended: "ended",
};
const REFUSALS = { refused: "no room", not_found: "gone" };

export function chip(phase, { watching, strained, refusal }) {
  if (phase === "refused") return REFUSALS[refusal] ?? "not started";
  if (phase !== "live") return CHIPS[phase];
  return strained ? "overloaded" : watching ? "watching" : "live";
}

export function waiting({ position, expected_wait_s, reason }) {
  const place = position === 1 ? "You are next in line" : `You are number ${position} in line`;
  const wait = expected_wait_s ? `, about ${duration(expected_wait_s)}` : "";
  return `${place}${wait}. ${sentence(reason)}`;
}

export const lost = (hasPicture, retry_s) =>
  hasPicture
    ? `The connection is lost. Your stream waits for you; trying again in ${Math.ceil(retry_s)} s.`
    : `The server does not answer; trying again in ${Math.ceil(retry_s)} s.`;

export const pausedByOwner = () => "Paused by whoever steers this stream. It goes on here when they resume.";

export function turnedAway({ status, message }, key) {
  if (status !== 401) return sentence(message);
  return key
    ? "Your access key is not one of this server's: look for a typing error under New stream, or ask who runs it."
    : "This server asks for an access key: enter it under New stream.";
}

export const goesOn = (obstacle) => `${sentence(obstacle)} Your stream goes on as it is.`;

export function denied({ code, message }) {
  if (code === "refused") return `The server cannot take this stream now. ${sentence(message)}`;
  if (code === "not_found") return `That stream is not there any more. ${sentence(message)}`;
  return sentence(message);
}

/** What a server that says no would say yes to. */
export const offer = ({ fps }) => (fps ? `Start at ${fps} frames a second` : "Wait in line");

/** A frame rate as it is typed. */
export const rate = (text) => (/^\s*[\d.]+\s*$/.test(text) ? Number(text) : "auto");

export const ended = ({ reason }) => `The stream has ended. ${sentence(reason)}`;
export const slowReader = (chunks) =>
  `Your connection is slower than the stream: the pictures of ${count(chunks, "chunk")} were left out. ` +
  "A smaller size or the video format helps.";
export const overloaded = () =>
  "The server is overloaded: it plays slower than it should. Fewer steps or a smaller window help.";
export const noCamera = (error) =>
  error.name === "NotAllowedError"
    ? "The camera is blocked. Allow it for this page, then choose Camera again."
    : `The camera cannot be used: ${error.message || error.name}`;
export const lacksFrames = () =>
  "This stream restyles a camera or a file of yours, and a page that is loaded again has neither: choose one, and it goes on.";
export const noFile = (file) => `${file.name} is not a video or picture that this browser can play.`;

export const noPicture = (file) => `${file.name} is not a picture that this browser can read.`;
export const noFrame = () => "There is no picture to take yet.";
const KEYS = { up: "Arrow up", left: "Arrow left", down: "Arrow down", right: "Arrow right" };
const shortKey = (name) => ({ up: "↑", left: "←", down: "↓", right: "→" })[name] ?? capital(name);
export const lookHint = (byFinger) => (byFinger ? "Drag to look around" : "Click to look around; Esc frees the mouse");
export const steered = () => "The stream: keys steer it";
/** A row of the help. */
export const steeringKeys = (names) => ({
  shown: names.map(shortKey).join(" ") || "Mouse, gamepad",
  says: "held, they steer the picture, whatever else they do here; not while you type",
});
/** A key on the screen, to those who hear it. */
export const key = (name) => KEYS[name] ?? `Key ${capital(name)}`;

export const noMidi = () => "This browser offers no MIDI here: use Chrome, Edge or Firefox, over HTTPS or on the server's machine.";
export const midiRefused = (error) =>
  error.name === "NotAllowedError" || error.name === "SecurityError"
    ? "MIDI is blocked. Allow it for this page, then connect again."
    : `MIDI cannot be used: ${error.message || error.name}`;
export const midiInputs = (names) =>
  names.length ? `Listening to ${names.join(", ")}.` : "No MIDI device is connected: plug one in.";
export const midiReady = () => "Bound knobs steer the stream.";
export const chooseControl = () => "Choose a control on the page: click it or go to it by Tab.";
export const moveKnob = (name) => `Now move a knob or press a pad for ${name}.`;
export const promptFirst = () => "Type the prompt that the pad should send, then choose it again.";
export const promptOf = (text) => `Prompt “${text}”`;
export const bound = ({ knob, label }) => `${capital(knob)} is bound to ${label}.`;
export const binding = ({ knob, label }) => `${capital(knob)}: ${label}`;

/** A control in a few strings. */
export function control(control) {
  switch (control.type) {
    case "seed":
      return `seed ${control.seed}`;
    case "steps":
      return count(control.steps.length, "step");
    case "noise_scale":
      return `noise ${Math.round(100 * control.noise_scale)}%`;
    case "window":
      return `window ${control.window}`;
    case "image":
      return control.mode === "blend" ? "blend to your picture" : "your picture";
    case "kv_bias":
      return `past ${Math.round(100 * control.kv_bias)}%`;
    default:
      return control.type;
  }
}

/** One that somebody else asked for. */
export const foreign = (id) => id.replace(/^osc-(.+)-\d+$|.+/, (_, kind) => (kind ? `${kind} by OSC` : "change"));

export function shared(link, { copied, key }) {
  const needs = key ? ". They need an access key as well: one that is read-only lets them do no more than that." : "";
  return `${copied ? "Link copied. " : ""}Whoever opens it may watch, not steer: ${link}${needs}`;
}

export const notSent = () => "Not sent: there is no connection just now.";
export const inLine = () => "Still in line: say it again once the stream runs.";
export const queued = (name, chunk) => `${capital(name)} queued for chunk ${chunk}`;
export const waitsForResume = (name) => `${capital(name)} shows once you resume`;
export const applied = (name, chunk) => `${capital(name)} applied at chunk ${chunk}`;
export const seen = (name, chunk, seconds) => `${applied(name, chunk)}, on screen after ${seconds.toFixed(1)} s`;
export const understood = (read) => `Understood: ${Object.entries(read).map(([word, as]) => `${word} → ${as}`).join(", ")}`;
export const unknown = (words) => `Not understood: ${words.map((word) => `“${word}”`).join(", ")}`;

const MODES = {
  recompute: "Recompute: the picture stays and follows the new prompt at once.",
  blend: "Blend: moves from the old prompt to the new one",
  cut: "Cut: a new picture begins.",
  keep: "Keep: the picture stays, and the new prompt takes over slowly.",
};
/** What a new prompt does in this mode. Of a blend its length follows. */
export const modeHint = (mode) => MODES[mode];

export const branch = (name) => `Branch ${name}`;
export const besideName = (name, phase) => (phase === "paused" ? `${branch(name)} · paused` : branch(name));
export const forked = (name, chunk) => `Branch ${name} goes on from chunk ${chunk}, beside this one. Steer either.`;
export const kept = (name) => `Branch ${name} is kept, the others end.`;
export const node = (name, { steered, beside, prompt }) => `${name}${steered ? " · steered" : beside ? " · beside" : ""} · ${prompt}`;
export const forkedFrom = (name, chunk) => `Forked from ${name} before chunk ${chunk}. Click to see it beside.`;
export const firstBranch = () => "Where all branches come from. Click to see it beside.";
export const otherBranch = () => "Who steers this stream goes on with another branch of it, which you see now.";
export const lookAt = (chunk) => `Look at chunk ${chunk}`;
export const moment = ({ index, media_s, prompts }) => `Chunk ${index} at ${clock(media_s)}: ${mix(prompts)}`;
export const branchGone = (chunk) => `The branch that chunk ${chunk} came from has ended: it cannot be gone on from.`;
export const steerTo = (prompt) => `Steer there: ${prompt}`;
export const pathHint = () => "All that led here, as a journal: millstream replay makes the film of it";

/** A mix of prompts; a blend under way reads as a movement. */
export const mix = (prompts) => prompts.map((prompt) => prompt.text).join(" → ");

export function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  return count(Math.round(seconds / 60), "minute");
}

export const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

const MAX_WORDS = 40; // letters of them; file systems take 255 bytes
const NAMEABLE = /[\p{L}\p{N}][\p{L}\p{M}\p{N}]*/gu;

/** The file of a recording: the first words of what it shows, and when it began. Letters, digits, dashes and underscores alone. */
export function recordingName(prompt, at) {
  const words = prompt.normalize("NFC").toLowerCase().match(NAMEABLE) ?? ["millstream"];
  while (words.length > 1 && words.join("-").length > MAX_WORDS) words.pop();
  const two = (number) => String(number).padStart(2, "0");
  const day = [at.getFullYear(), at.getMonth() + 1, at.getDate()].map(two).join("-");
  const time = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join("-");
  return `${[...words.join("-")].slice(0, MAX_WORDS).join("")}_${day}_${time}.mp4`;
}

export function bytes(size) {
  const steps = ["bytes", "kB", "MB", "GB"];
  const step = Math.min(steps.length - 1, Math.floor(Math.log10(Math.max(1, size)) / 3));
  return `${(size / 1000 ** step).toFixed(step ? 1 : 0)} ${steps[step]}`;
}

const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export function sentence(text) {
  if (!text) return "";
  return /[.!?]$/.test(text) ? capital(text) : `${capital(text)}.`;
}
