/**
 * Knobs and pads of a MIDI controller on the page's own controls: choose one, move a knob, it is bound. A bound knob does what a
 * hand on the control would do; this knows nothing of streams. Bindings are remembered by `memory.js`.
 */

import * as memory from "./memory.js";
import * as strings from "./strings.js";

const LEARNABLE =
  "#prompt, #send, #modes input, #blend, #preview, #fork, #cut, #pause, #seed, #dice, #steps, #window, #noise, #past, " +
  "#sources input:not([value=file]), #record, #save, #stop, #fullscreen";
const CHANGE_MS = 60; // from one change that is sent to the next: servers take 20 controls a second
const PRESSED = 0.5;

/** Which knob or pad a message is of, and how far it is moved, 0 to 1; null for what is neither. */
export function read([status, first, second]) {
  const channel = `channel ${(status & 0x0f) + 1}`;
  switch (status & 0xf0) {
    case 0x90:
      return { knob: `note ${first}, ${channel}`, value: second / 127 }; // let go: 0
    case 0xb0:
      return { knob: `knob ${first}, ${channel}`, value: second / 127 };
    case 0xe0:
      return { knob: `pitch, ${channel}`, value: (second * 128 + first) / 16383 };
    default:
      return null;
  }
}

export class Midi {
  #access = null;
  #learning = false;
  #chosen = null;
  #values = new Map(); // of each knob, the last
  #changed = new Set(); // controls whose new value is not sent yet
  #timer = null;

  /** `onPrompt` is called with the words that a pad is bound to. */
  constructor({ status, connect, learn, list }, onPrompt) {
    Object.assign(this, { status, learn, list, onPrompt });
    connect.addEventListener("click", () => this.#connect());
    learn.addEventListener("click", () => this.#setLearning(!this.#learning));
    for (const type of ["pointerdown", "mousedown", "click"]) document.addEventListener(type, (event) => this.#pick(event), true);
    document.addEventListener("focusin", ({ target }) => this.#choose(target));
    document.addEventListener("keydown", ({ key }) => key === "Escape" && this.#setLearning(false));
    this.#show();
    this.#connectAgain();
  }

  /** Where there are bindings and the browser has agreed before, nobody has to ask again. */
  async #connectAgain() {
    if (!memory.bindings().length) return;
    const permission = await navigator.permissions?.query({ name: "midi" }).catch(() => null);
    if (permission?.state === "granted") this.#connect();
  }

  async #connect() {
    if (!navigator.requestMIDIAccess) {
      this.#say(strings.noMidi());
      return;
    }
    try {
      this.#access = await navigator.requestMIDIAccess();
    } catch (error) {
      this.#say(strings.midiRefused(error));
      return;
    }
    this.#access.onstatechange = () => this.#listen();
    this.#listen();
  }

  #listen() {
    const inputs = [...this.#access.inputs.values()];
    for (const input of inputs) input.onmidimessage = ({ data }) => this.#hear(data);
    this.learn.disabled = inputs.length === 0;
    this.#say(strings.midiInputs(inputs.map(({ name }) => name)));
  }

  #setLearning(on) {
    if (!on && !this.#learning) return;
    this.#learning = on;
    this.#chosen = null;
    this.learn.setAttribute("aria-pressed", on);
    for (const element of document.querySelectorAll(LEARNABLE)) element.toggleAttribute("data-learnable", on);
    this.#say(on ? strings.chooseControl() : strings.midiReady());
  }

  /** While one is chosen, a click on it does nothing else. */
  #pick(event) {
    const element = event.target.closest(LEARNABLE) ?? event.target.closest("label")?.control;
    if (!this.#learning || !element?.matches(LEARNABLE)) return;
    event.preventDefault();
    event.stopPropagation();
    this.#choose(element);
  }

  #choose(element) {
    if (!this.#learning || !element.matches(LEARNABLE)) return;
    this.#chosen = element;
    this.#say(strings.moveKnob(label(element)));
  }

  #hear(data) {
    const moved = read(data);
    if (moved === null) return;
    const before = this.#values.get(moved.knob) ?? 0;
    this.#values.set(moved.knob, moved.value);
    if (this.#learning) {
      if (this.#chosen !== null && moved.value > 0) this.#bind(moved.knob);
      return;
    }
    const pressed = before < PRESSED && moved.value >= PRESSED;
    for (const binding of memory.bindings()) {
      if (binding.knob === moved.knob) this.#move(binding, moved, pressed || (moved.knob.startsWith("note") && moved.value > 0));
    }
  }

  #bind(knob) {
    const element = this.#chosen;
    const text = element.id === "prompt" ? element.value.trim() : undefined;
    if (text === "") {
      this.#say(strings.promptFirst());
      return;
    }
    const bound = { knob, control: nameOf(element), label: text ? strings.promptOf(text) : label(element), text };
    memory.rememberBinding(bound);
    this.#setLearning(false);
    this.#show();
    this.#say(strings.bound(bound));
  }

  #move({ control, text }, { value }, pressed) {
    const element = [...document.querySelectorAll(LEARNABLE)].find((each) => nameOf(each) === control);
    if (!element || element.disabled) return;
    if (["range", "number"].includes(element.type)) this.#turn(element, value);
    else if (pressed && text) this.onPrompt(text);
    else if (pressed) element.click();
  }

  #turn(element, value) {
    const [lowest, step] = [Number(element.min), Number(element.step) || 1];
    const highest = Number(element.dataset.knobMax ?? element.max);
    const turned = String(Number((lowest + step * Math.round(((highest - lowest) * value) / step)).toFixed(4)));
    if (element.value === turned) return;
    element.value = turned;
    element.dispatchEvent(new Event("input"));
    this.#changed.add(element);
    if (this.#timer !== null) return;
    this.#timer = setInterval(() => this.#send(), CHANGE_MS);
    this.#send();
  }

  /** Of a knob that is being turned, only where it is now and then. */
  #send() {
    const [element] = this.#changed;
    if (element === undefined) {
      clearInterval(this.#timer);
      this.#timer = null;
      return;
    }
    this.#changed.delete(element);
    element.dispatchEvent(new Event("change"));
  }

  #show() {
    this.list.replaceChildren(...memory.bindings().map((bound) => this.#item(bound)));
  }

  #item(bound) {
    const item = document.createElement("li");
    const words = document.createElement("p");
    words.textContent = strings.binding(bound);
    const remove = document.createElement("button");
    Object.assign(remove, { type: "button", className: "quiet", textContent: "Remove", ariaLabel: `Remove ${bound.knob}` });
    remove.addEventListener("click", () => {
      memory.forgetBinding(bound.knob);
      this.#show();
    });
    item.append(words, remove);
    return item;
  }

  #say(text) {
    this.status.textContent = text;
  }
}

const nameOf = (element) => element.id || `${element.name}:${element.value}`;

/** What a control is called on the page, without its value. */
function label(element) {
  const [named] = element.labels ?? [];
  const words = element.getAttribute("aria-label") ?? named?.firstChild.textContent.trim();
  return (words || (named ?? element).textContent).trim();
}
