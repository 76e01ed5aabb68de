/**
 * Keys, mouse look, gamepad and touch: what is held goes to `send` as {keys, tapped, look, axes}, at most 30 times a second and at
 * once where that is kept. Everything is let go when the page loses focus, when somebody types and when the stream stands still.
 * Knows no stream; shows nothing of itself for a model that takes no keys.
 */

import * as strings from "./strings.js";

const EVERY_MS = 1000 / 30;
const DEGREES_PER_PIXEL = 0.15;
const STICK_DEGREES_PER_S = 120;
const STICK_HELD = 0.5; // of a stick's way: from here on it counts as a key
const STICK_RESTS = 0.1;
const AGAIN_MS = 250; // after the server had too much
const CODES = { Space: "space", Enter: "enter", ShiftLeft: "shift", ShiftRight: "shift", ControlLeft: "ctrl", ControlRight: "ctrl" };
const SIGNS = { up: "↑", left: "←", down: "↓", right: "→" };
const CLUSTERS = [["w", "a", "s", "d"], ["up", "left", "down", "right"]];
const PAD_BUTTONS = { 0: "space", 12: "up", 13: "down", 14: "left", 15: "right" };
const HAS_KEYS_OF_ITS_OWN = "input, textarea, select, [contenteditable], ol[tabindex]";
const NOTHING = { keys: [], look: false, axes: 0 };

/** The name of a key as models have it, from where it lies on the keyboard: WASD are four neighbours on any layout. */
export function keyName(code) {
  const [, letter] = /^(?:Key|Digit)(.)$/.exec(code) ?? [];
  const [, way] = /^Arrow(.+)$/.exec(code) ?? [];
  return CODES[code] ?? (letter ?? way ?? "").toLowerCase();
}

export class Actions {
  #takes = NOTHING;
  #isOn = false;
  #held = new Map(); // key → what holds it: "key", "touch", "pad"
  #tapped = new Set();
  #look = [0, 0];
  #axes = [];
  #sentAt = -Infinity;
  #sent = ""; // the state that was sent last
  #timer = 0;
  #polledAt = 0;
  #buttons = new Map();
  #finger = [0, 0]; // where it was

  constructor({ frame, pads, hint }, send) {
    Object.assign(this, { frame, pads, hint, send });
    document.addEventListener("keydown", (event) => this.#keyDown(event), { capture: true });
    document.addEventListener("keyup", (event) => this.#release(keyName(event.code), "key"), { capture: true });
    document.addEventListener("mousemove", (event) => document.pointerLockElement === frame && this.#turn(event.movementX, event.movementY));
    document.addEventListener("focusin", ({ target }) => (target.matches(HAS_KEYS_OF_ITS_OWN) || target.closest("dialog")) && this.letGo());
    document.addEventListener("visibilitychange", () => document.hidden && this.letGo());
    addEventListener("blur", () => this.letGo());
    addEventListener("gamepadconnected", () => this.#poll());
    frame.addEventListener("click", (event) => this.#capture(event));
    for (const type of ["pointerdown", "pointermove"]) frame.addEventListener(type, (event) => this.#drag(event));
  }

  /** What the model takes, as the server's greeting says it. */
  offer({ keys = [], look = false, axes = 0 } = NOTHING) {
    this.#takes = { keys, look, axes };
    this.hint.textContent = strings.lookHint(matchMedia("(pointer: coarse)").matches);
    this.#draw();
    this.#show();
  }

  /** Whether there is a stream now that can be steered so. One that goes on after it stood still has forgotten what is held. */
  setRunning(isOn) {
    if (isOn === this.#isOn) return;
    this.#held.clear();
    this.#clear();
    this.#sent = this.#state();
    this.#isOn = isOn;
    this.#show();
    if (!isOn && document.pointerLockElement === this.frame) document.exitPointerLock();
    if (isOn) this.#poll();
  }

  get takesKeys() {
    return this.#takes.keys.length > 0 || this.#takes.look || this.#takes.axes > 0;
  }

  letGo() {
    this.#held.clear();
    this.#axes = [];
    if (document.pointerLockElement === this.frame) document.exitPointerLock();
    this.#changed();
  }

  /** The server did not take what was sent last. */
  sendAgain() {
    this.#sent = "";
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#say(), AGAIN_MS);
  }

  #keyDown(event) {
    const name = keyName(event.code);
    if (!this.#isOn || !this.#takes.keys.includes(name)) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return; // a shortcut of the browser's
    if (event.target.matches(HAS_KEYS_OF_ITS_OWN) || document.querySelector("dialog[open]")) return;
    if (["space", "enter"].includes(name) && event.target.matches("button, a, summary")) return;
    event.preventDefault(); // neither scrolls nor is a shortcut of the page
    this.#press(name, "key");
  }

  #press(name, by) {
    if (!this.#isOn || this.#held.has(name)) return;
    this.#held.set(name, by);
    this.#tapped.delete(name);
    this.#changed();
  }

  #release(name, by) {
    if (this.#held.get(name) !== by) return;
    this.#held.delete(name);
    if (!JSON.parse(this.#sent || "{}").keys?.includes(name)) this.#tapped.add(name); // shorter than a message
    this.#changed();
  }

  #turn(right, down) {
    if (!this.#isOn || !this.#takes.look) return;
    this.#look[0] += right * DEGREES_PER_PIXEL;
    this.#look[1] += down * DEGREES_PER_PIXEL;
    this.#changed();
  }

  /** A click on the picture, not on what lies over it. */
  #capture({ target }) {
    if (!this.#isOn || target.closest("button")) return;
    this.frame.focus({ preventScroll: true });
    if (this.#takes.look && matchMedia("(pointer: fine)").matches) this.frame.requestPointerLock()?.catch?.(() => {}); // the browser may not let it
  }

  /** A finger on the picture turns the view. */
  #drag({ pointerType, target, type, clientX, clientY }) {
    if (pointerType !== "touch" || target.closest("button")) return;
    if (type === "pointermove") this.#turn(clientX - this.#finger[0], clientY - this.#finger[1]);
    this.#finger = [clientX, clientY];
  }

  #changed() {
    this.#light();
    if (this.#timer) return;
    const wait_ms = this.#sentAt + EVERY_MS - performance.now();
    if (wait_ms <= 0) this.#say();
    else this.#timer = setTimeout(() => this.#say(), wait_ms);
  }

  #say() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const state = this.#state();
    const hasMoved = this.#tapped.size > 0 || this.#look[0] !== 0 || this.#look[1] !== 0;
    if (!this.#isOn || (state === this.#sent && !hasMoved)) return;
    this.#sent = state;
    this.#sentAt = performance.now();
    this.send({ ...JSON.parse(state), tapped: [...this.#tapped], look: this.#look });
    this.#clear();
  }

  #clear() {
    this.#tapped.clear();
    this.#look = [0, 0];
  }

  #state() {
    return JSON.stringify({ keys: [...this.#held.keys()].sort(), axes: this.#axes });
  }

  /** A gamepad says nothing by itself: it is asked for as long as there is one, and a stream. */
  #poll() {
    if (!this.#isOn || !this.takesKeys || this.#polledAt) return;
    const turn = (now) => {
      const pad = navigator.getGamepads().find((each) => each?.connected);
      this.#polledAt = pad && this.#isOn ? now : 0;
      if (!this.#polledAt) return;
      if (document.hasFocus()) this.#read(pad, Math.min(now - before, 100) / 1000);
      before = now;
      requestAnimationFrame(turn);
    };
    let before = (this.#polledAt = performance.now());
    requestAnimationFrame(turn);
  }

  #read({ axes, buttons }, passed_s) {
    const way = axes.map((each) => (Math.abs(each) < STICK_RESTS ? 0 : each));
    const [x, y, lookX, lookY] = way;
    const holds = new Map(Object.entries(PAD_BUTTONS).map(([number, name]) => [name, buttons[number]?.pressed]));
    if (!this.#takes.axes) {
      for (const [name, share] of [["a", -x], ["d", x], ["w", -y], ["s", y]]) holds.set(name, share > STICK_HELD);
    }
    for (const [name, isHeld] of holds) {
      if (!this.#takes.keys.includes(name)) continue;
      if (isHeld) this.#press(name, "pad");
      else this.#release(name, "pad");
    }
    if (this.#takes.axes) {
      const moved = way.slice(0, this.#takes.axes).map((each) => Math.round(each * 100) / 100);
      if (moved.join() !== this.#axes.join()) {
        this.#axes = moved;
        this.#changed();
      }
    }
    const pixels = (STICK_DEGREES_PER_S * passed_s) / DEGREES_PER_PIXEL;
    if (lookX || lookY) this.#turn(lookX * pixels, lookY * pixels);
  }

  /** Keys on the screen: WASD to the left, arrows to the right, others between them. */
  #draw() {
    this.#buttons.clear();
    const others = this.#takes.keys.filter((key) => !CLUSTERS.flat().includes(key));
    const [left, right] = CLUSTERS.map((keys) => this.#cluster(keys.filter((key) => this.#takes.keys.includes(key))));
    this.pads.replaceChildren(left, this.#cluster(others), right);
  }

  #cluster(keys) {
    const cluster = document.createElement("div");
    cluster.className = "cluster";
    cluster.append(...keys.map((key) => this.#button(key)));
    return cluster;
  }

  #button(key) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: SIGNS[key] ?? key.toUpperCase() });
    button.dataset.key = key;
    button.setAttribute("aria-label", strings.key(key));
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("pointerdown", (event) => (button.setPointerCapture(event.pointerId), this.#press(key, "touch")));
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) button.addEventListener(end, () => this.#release(key, "touch"));
    button.addEventListener("click", ({ detail }) => detail === 0 && (this.#press(key, "touch"), this.#release(key, "touch"))); // by Enter, or a screen reader
    button.addEventListener("contextmenu", (event) => event.preventDefault()); // a finger that stays
    this.#buttons.set(key, button);
    return button;
  }

  #show() {
    const isSeen = this.#isOn && this.takesKeys;
    this.pads.hidden = !isSeen || !this.#takes.keys.length;
    this.hint.hidden = !isSeen || !this.#takes.look;
    this.frame.toggleAttribute("data-looks", isSeen && this.#takes.look);
    for (const [name, value] of Object.entries({ tabindex: "0", role: "application", "aria-label": strings.steered() })) {
      if (isSeen) this.frame.setAttribute(name, value);
      else this.frame.removeAttribute(name);
    }
    this.#light();
  }

  #light() {
    for (const [key, button] of this.#buttons) button.setAttribute("aria-pressed", String(this.#held.has(key)));
  }
}
