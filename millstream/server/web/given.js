/**
 * A picture to begin from: chosen, dropped, pasted, taken by the camera or from the stream itself. It is made small here, so that
 * little is sent. Knows nothing of streams: `onUse` gets {image, fit} and how, "cut" or "blend".
 */

import { FrameSource } from "./frames.js";
import * as strings from "./strings.js";

const MAX_SIDE = 1280;
const MAX_BYTES = 400_000;
const QUALITIES = [0.92, 0.8, 0.65, 0.5];
const CAMERA = { width: 1280, height: 720, fps: 30 };
const THUMB = 96;

export class GivenPicture {
  #image = ""; // in base64
  #attempt = 0; // counts what was given, so that one that is overtaken is not kept

  /** `frameNow` returns what the stream shows, to be drawn. */
  constructor({ box, thumb, whole, remove, cut, blend, add, file, stills, camera, fromFrame, stage }, { onUse, onTrouble, frameNow }) {
    Object.assign(this, { box, thumb, whole, cut, blend, add, file, stills, fromFrame, onUse, onTrouble, frameNow });
    add.addEventListener("click", () => file.click());
    file.addEventListener("change", () => this.#chosen());
    remove.addEventListener("click", () => (this.clear(), add.focus()));
    cut.addEventListener("click", () => this.#use("cut"));
    blend.addEventListener("click", () => this.#use("blend"));
    camera.addEventListener("click", () => this.#fromCamera());
    fromFrame.addEventListener("click", () => this.#take(async () => this.frameNow(), strings.noFrame()));
    document.addEventListener("paste", (event) => this.#given(event, event.clipboardData));
    stage.addEventListener("dragover", (event) => this.#isOffered && [...event.dataTransfer.types].includes("Files") && event.preventDefault());
    stage.addEventListener("drop", (event) => this.#given(event, event.dataTransfer));
  }

  /** Whether the server takes pictures at all. */
  offer(takesImage) {
    this.add.hidden = this.stills.hidden = !takesImage;
  }

  /** A running stream goes on from the picture; otherwise one begins with it. */
  setRunning({ running, hasPicture }) {
    this.cut.hidden = this.blend.hidden = !running;
    this.fromFrame.disabled = !hasPicture;
  }

  /** What a new stream begins with. */
  get choices() {
    return this.#image ? { image: this.#image, fit: this.#fit } : {};
  }

  give(file) {
    return this.#take(() => createImageBitmap(file), strings.noPicture(file));
  }

  clear() {
    this.#attempt++;
    this.#image = "";
    this.box.hidden = true;
  }

  get #fit() {
    return this.whole.checked ? "pad" : "crop";
  }

  get #isOffered() {
    return !this.add.hidden;
  }

  #chosen() {
    const [file] = this.file.files;
    if (file) this.give(file);
    this.file.value = ""; // so that it can be chosen again
  }

  #use(mode) {
    if (this.#image && this.onUse({ image: this.#image, fit: this.#fit }, mode)) this.clear();
  }

  #given(event, { files }) {
    const picture = this.#isOffered && [...files].find(({ type }) => type.startsWith("image/"));
    if (event.type === "drop" && files.length) event.preventDefault(); // or the browser opens it instead of the page
    if (picture) {
      event.preventDefault();
      this.give(picture);
    } else if (files.length && this.#isOffered) this.onTrouble(strings.noPicture(files[0]));
  }

  async #fromCamera() {
    const video = document.createElement("video");
    Object.assign(video, { muted: true, playsInline: true });
    const source = new FrameSource(video);
    try {
      await source.openCamera(CAMERA);
      await new Promise((resolve) => video.requestVideoFrameCallback(resolve));
      await this.#take(async () => video, strings.noFrame());
    } catch (error) {
      this.onTrouble(strings.noCamera(error));
    } finally {
      source.close();
    }
  }

  /** `read` gives something to draw; `trouble` is said where it cannot be read. */
  async #take(read, trouble) {
    const attempt = ++this.#attempt;
    try {
      const picture = await read();
      const blob = await small(picture);
      const image = await base64(blob);
      if (attempt !== this.#attempt) return;
      drawInside(this.thumb, picture);
      this.#image = image;
      this.box.hidden = false;
    } catch {
      if (attempt === this.#attempt) this.onTrouble(trouble);
    }
  }
}

const sides = (picture) => [picture.videoWidth ?? picture.width, picture.videoHeight ?? picture.height];

/** A JPEG of at most `MAX_SIDE` and about `MAX_BYTES`; what is transparent is white. */
async function small(picture) {
  const [width, height] = sides(picture);
  const scale = Math.min(1, MAX_SIDE / Math.max(width, height));
  const canvas = new OffscreenCanvas(Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale)));
  const context = canvas.getContext("2d", { alpha: false });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  let blob = null;
  for (const quality of QUALITIES) {
    blob = await canvas.convertToBlob({ type: "image/jpeg", quality });
    if (blob.size <= MAX_BYTES) break;
  }
  return blob;
}

function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

function drawInside(canvas, picture) {
  const [width, height] = sides(picture);
  const scale = THUMB / Math.max(width, height);
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
}
