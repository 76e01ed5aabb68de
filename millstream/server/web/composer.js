/**
 * The prompt box: what to show, how to get there, what was said before. Knows nothing of streams: what is sent goes to
 * `onSend` as {prompt, mode, chunks}, what is being typed to `onDraft` alike, when the typing rests; null when it is gone.
 */

import * as memory from "./memory.js";
import * as strings from "./strings.js";

const REST_MS = 250;
const READ_S = 2.5;

export class Composer {
  #resting = 0; // the timer until a draft is told
  #history = [];
  #place = 0; // in the history; its length means the draft
  #draft = "";
  #running = false;
  #readUntil = 0;

  constructor({ form, prompt, sendLabel, status, unknown, understood, examples, modes, modeHint, blend, blendField }, onSend, onDraft) {
    Object.assign(this, { form, prompt, sendLabel, status, unknown, understood, examples, modes, modeHint, blend, blendField });
    Object.assign(this, { onSend, onDraft });
    this.#showMode();
    this.#rewind();
    form.addEventListener("submit", (event) => (event.preventDefault(), this.#send(this.mode)));
    prompt.addEventListener("keydown", (event) => this.#key(event));
    prompt.addEventListener("input", () => this.#typed());
    modes.addEventListener("change", () => this.#showMode());
  }

  get text() {
    return this.prompt.value.trim();
  }

  set text(text) {
    this.prompt.value = text;
  }

  get mode() {
    return this.modes.querySelector(":checked").value;
  }

  get blendChunks() {
    return Number(this.blend.value) || 1;
  }

  /** By place, from 1. */
  chooseMode(place) {
    this.modes.querySelectorAll("input")[place - 1].checked = true;
    this.#showMode();
  }

  offer(examples) {
    this.examples.replaceChildren(
      ...examples.map((example) => {
        const [item, button] = [document.createElement("li"), document.createElement("button")];
        button.type = "button";
        button.textContent = example;
        button.addEventListener("click", () => this.choose(example));
        item.append(button);
        return item;
      }),
    );
  }

  /** Say this, as if it had been typed. */
  choose(prompt) {
    this.text = prompt;
    this.#send(this.mode);
  }

  /** It may be chosen next. */
  consider(prompt) {
    this.onDraft(this.#said(this.mode, prompt));
  }

  /** Another stream is steered from now on: its prompt stands here, unless a new one is being written. */
  follow(prompt) {
    if (prompt && (!this.text || this.#history.includes(this.text))) this.text = prompt;
  }

  /** Sending starts a stream, or changes the one that runs. */
  setRunning(running) {
    this.#running = running;
    this.sendLabel.textContent = running ? "Send" : "Start";
  }

  /** What went wrong stands until it can have been read, whatever went right meanwhile. */
  say(text, tone = "") {
    const now = performance.now();
    if (tone !== "bad" && text && now < this.#readUntil) return;
    this.#readUntil = tone === "bad" ? now + READ_S * 1000 : 0;
    this.status.textContent = text;
    this.status.dataset.tone = tone;
  }

  /** What the model makes of the prompt in force: words that mean nothing to it, and words by what it reads in their place. */
  explain({ unknown, understood = {} }) {
    this.#showIn(this.unknown, unknown.length ? strings.unknown(unknown) : "");
    this.#showIn(this.understood, Object.keys(understood).length ? strings.understood(understood) : "");
  }

  #showIn(place, text) {
    if (place.textContent !== text) place.textContent = text; // said aloud once
    place.hidden = !text;
  }

  /** Whoever starts without a word gets the first example; a stream that runs is not changed by that. */
  #send(mode) {
    if (!this.text && !this.#running) this.text = this.examples.querySelector("button")?.textContent ?? "";
    if (!this.text) {
      this.say("Say what the stream should show.", "bad");
      return;
    }
    memory.rememberPrompt(this.text);
    this.#rewind();
    clearTimeout(this.#resting);
    this.onSend(this.#said(mode));
  }

  #said(mode, prompt = this.text) {
    return { prompt, mode, chunks: this.blendChunks };
  }

  #typed() {
    this.#place = this.#history.length; // what is typed is a draft
    clearTimeout(this.#resting);
    this.#resting = setTimeout(() => this.onDraft(this.text ? this.#said(this.mode) : null), REST_MS);
  }

  #key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.#send(event.ctrlKey || event.metaKey ? "cut" : this.mode);
    } else if (event.key === "Escape") {
      this.prompt.blur();
    } else if (event.key === "ArrowUp" && this.#caretIn("first")) {
      this.#recall(-1, event);
    } else if (event.key === "ArrowDown" && this.#caretIn("last")) {
      this.#recall(+1, event);
    }
  }

  #recall(step, event) {
    const place = this.#place + step;
    if (place < 0 || place > this.#history.length) return;
    event.preventDefault();
    if (this.#place === this.#history.length) this.#draft = this.prompt.value;
    this.#place = place;
    this.prompt.value = place === this.#history.length ? this.#draft : this.#history[place];
  }

  #rewind() {
    this.#history = memory.prompts();
    this.#place = this.#history.length;
    this.#draft = "";
    if (this.#history.at(-1) === this.text) this.#place -= 1; // it is in the box already
  }

  #caretIn(line) {
    const { value, selectionStart, selectionEnd } = this.prompt;
    return line === "first" ? !value.slice(0, selectionStart).includes("\n") : !value.slice(selectionEnd).includes("\n");
  }

  /** What a new prompt will do, and how long a blend takes. */
  #showMode() {
    this.modeHint.textContent = strings.modeHint(this.mode);
    this.blendField.hidden = this.mode !== "blend";
  }
}
