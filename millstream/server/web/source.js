/** What a stream starts from: words alone, a camera or a file, as chosen. Knows nothing of streams or of sending. */

import { FrameSource } from "./frames.js";
import * as strings from "./strings.js";

export class SourceChoice {
  #frames;

  /** `onChoice` is called when what was chosen is there, `onTrouble` with words when it cannot be had. */
  constructor({ choice, file, preview }, { shape, onChoice, onTrouble }) {
    Object.assign(this, { choice, file, shape, onChoice, onTrouble });
    this.#frames = new FrameSource(preview);
    choice.addEventListener("change", () => this.#choose());
    file.addEventListener("change", () => this.#open(this.#openFile, strings.noFile(file.files[0])));
    file.addEventListener("cancel", () => this.#backToWords());
  }

  get takesInput() {
    return this.#name !== "words";
  }

  /** Send frames of this shape until something else is chosen. */
  pump(shape, send) {
    this.#frames.pump(shape, send);
  }

  get #name() {
    return this.choice.querySelector(":checked").value;
  }

  #choose() {
    this.#frames.close();
    if (this.#name === "words") this.onChoice();
    else if (this.#name === "file") this.file.click(); // goes on when one is chosen
    else this.#open(this.#openCamera);
  }

  async #open(open, trouble = null) {
    try {
      await open.call(this);
    } catch (error) {
      this.#backToWords();
      this.onTrouble(trouble ?? strings.noCamera(error));
      return;
    }
    this.onChoice();
  }

  #openCamera() {
    return this.#frames.openCamera(this.shape());
  }

  #openFile() {
    return this.#frames.openFile(this.file.files[0]);
  }

  #backToWords() {
    this.#frames.close();
    this.choice.querySelector("[value=words]").checked = true;
  }
}
