/**
 * Futures: small pictures of what the stream could become, to choose from. Knows what the server calls previews; what is chosen
 * goes to `onChoose`, what is pointed at to `onConsider`, so that it can be made ahead; null when nothing is.
 */

import * as strings from "./strings.js";

const HEIGHT = 96;

export class Futures {
  #typed = ""; // what was asked for by name
  #wanted = false; // whether an answer is still of this moment

  constructor({ box, list, close, button }, stream, { onChoose, onConsider, onNote }) {
    Object.assign(this, { box, list, button, stream, onChoose, onConsider, onNote });
    close.addEventListener("click", () => this.clear());
    stream.addEventListener("previews", ({ detail }) => this.#show(detail));
    stream.addEventListener("fault", () => this.#settle()); // it may have been about this
    stream.addEventListener("phase", () => this.#settle());
  }

  /** Of what is typed, if that is something new, or of what the server suggests. */
  ask({ prompt, mode, isNew }) {
    this.#typed = isNew ? prompt : "";
    this.#wanted = true;
    const asked = { type: "preview", mode, ...(isNew && { prompts: [prompt] }) };
    this.#settle(this.stream.ask(asked));
  }

  clear() {
    this.#wanted = false;
    this.list.replaceChildren();
    this.box.hidden = true;
  }

  async #show({ futures, note }) {
    this.#settle();
    const cards = await Promise.all(futures.map((future) => this.#card(future)));
    if (!this.#wanted) return;
    if (this.#typed) this.list.prepend(...cards);
    else this.list.replaceChildren(...cards);
    this.box.hidden = false;
    this.onNote(strings.sentence(note));
    this.onConsider(futures[0].prompt);
  }

  #settle(busy = false) {
    this.button.toggleAttribute("aria-busy", busy);
    this.button.disabled = busy || !this.stream.running;
  }

  async #card({ prompt, jpeg }) {
    const [item, card, name] = ["li", "button", "span"].map((kind) => document.createElement(kind));
    card.type = "button";
    card.title = strings.steerTo(prompt);
    name.textContent = prompt;
    if (jpeg) card.append(await picture(jpeg));
    card.append(name);
    card.addEventListener("click", () => this.onChoose(prompt));
    card.addEventListener("pointerenter", () => this.onConsider(prompt));
    card.addEventListener("focus", () => this.onConsider(prompt));
    item.append(card);
    return item;
  }
}

async function picture(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/jpeg" }));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.round((HEIGHT * bitmap.width) / bitmap.height), HEIGHT];
  canvas.setAttribute("aria-hidden", "true");
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas;
}
