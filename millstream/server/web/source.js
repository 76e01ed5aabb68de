/** What a stream starts from: words alone, a camera, a file, or a video of the server's. Knows nothing of streams or of sending. */

import { FrameSource } from "./frames.js";
import * as strings from "./strings.js";

const NAMED = "named:"; // before the name of one that the server has

export class SourceChoice {
  #frames;
  #chosen = ""; // last; "file" while a file is shown
  #attempt = 0; // counts openings and choices, so that one that was overtaken changes nothing

  /** `onChoice` is called when what was chosen is there, `onTrouble` with words when it cannot be had. */
  constructor({ choice, file, preview }, { shape, onChoice, onTrouble }) {
    Object.assign(this, { choice, file, shape, onChoice, onTrouble });
    this.#frames = new FrameSource(preview);
    choice.addEventListener("change", () => this.#choose());
    choice.querySelector("[value=file]").addEventListener("click", () => this.#chosen === "file" && this.#askForFile()); // another one
    file.addEventListener("change", () => this.#open(this.#openFile, strings.noFile(file.files[0])));
    file.addEventListener("cancel", () => this.#frames.isOpen || this.#backToWords());
  }

  get takesInput() {
    return this.#name !== "words";
  }

  get sendsFrames() {
    return this.takesInput && !this.named;
  }

  /** Of a video that the server has; empty for all else. */
  get named() {
    return this.#name.startsWith(NAMED) ? this.#name.slice(NAMED.length) : "";
  }

  /** The server's own videos, beside the rest. */
  offer(names) {
    for (const { value } of this.choice.querySelectorAll(`[value^="${NAMED}"]`)) names = names.filter((name) => NAMED + name !== value);
    for (const name of names) {
      const [label, input, words] = ["label", "input", "span"].map((tag) => document.createElement(tag));
      Object.assign(input, { type: "radio", name: "source", value: NAMED + name });
      words.textContent = name;
      label.append(input, words);
      this.choice.append(label);
    }
  }

  /** As a click on it does. */
  useCamera() {
    this.choice.querySelector("[value=camera]").checked = true;
    this.#choose();
  }

  /** That of a stream that one comes to; a camera or a file is not there again. */
  show(name) {
    const known = [...this.choice.querySelectorAll("input")].find(({ value }) => value === NAMED + name);
    if (known || this.named) this.#backToWords();
    if (known) known.checked = true;
  }

  get isPumping() {
    return this.#frames.isPumping;
  }

  /** Send frames of this shape until another stream begins, this one ends or something else is chosen. */
  pump(shape, send) {
    this.#frames.pump(shape, send);
  }

  rest() {
    this.#frames.rest();
  }

  get #name() {
    return this.choice.querySelector(":checked").value;
  }

  #choose() {
    this.#attempt++;
    this.#frames.close();
    this.#chosen = this.#name;
    if (!this.sendsFrames) this.onChoice();
    else if (this.#name === "file") this.#askForFile(); // goes on when one is chosen
    else this.#open(this.#openCamera);
  }

  /** Also for the one that was chosen last: who chooses that again changes nothing, to a browser that remembers. */
  #askForFile() {
    this.file.value = "";
    this.file.click();
  }

  async #open(open, trouble = null) {
    this.#frames.close();
    const attempt = ++this.#attempt;
    try {
      await open.call(this);
    } catch (error) {
      if (attempt !== this.#attempt) return; // another choice closed it while it opened
      this.#backToWords();
      this.onTrouble(trouble ?? strings.noCamera(error));
      return;
    }
    if (attempt === this.#attempt) this.onChoice();
  }

  #openCamera() {
    return this.#frames.openCamera(this.shape());
  }

  #openFile() {
    return this.#frames.openFile(this.file.files[0]);
  }

  #backToWords() {
    this.#attempt++;
    this.#frames.close();
    this.#chosen = "words";
    this.choice.querySelector("[value=words]").checked = true;
  }
}
