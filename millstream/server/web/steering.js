/**
 * The knobs: seed, steps, window, noise, past. Each change goes to `onChange` as a control. Knows nothing of streams but their
 * configuration.
 */

const MAX_SEED = 2 ** 31;

export const randomSeed = () => Math.floor(Math.random() * MAX_SEED);

export class Steering {
  #schedule = null; // until a server has said what streams start with
  #sink = 0;
  #past = null; // how much it weighs, once a stream or a person has said so

  constructor({ seed, dice, steps, stepsValue, window, noise, noiseValue, past, pastValue }, onChange) {
    Object.assign(this, { seed, steps, stepsValue, window, noise, noiseValue, past, pastValue });
    seed.value = randomSeed();
    seed.addEventListener("change", () => seed.reportValidity() && onChange({ type: "seed", seed: Number(seed.value) }));
    dice.addEventListener("click", () => this.rollSeed());
    steps.addEventListener("input", () => this.#showValues());
    steps.addEventListener("change", () => this.#schedule && onChange({ type: "steps", steps: this.#levels() }));
    window.addEventListener("change", () => window.reportValidity() && onChange(this.#windowControl()));
    noise.addEventListener("input", () => this.#showValues());
    noise.addEventListener("change", () => onChange({ type: "noise_scale", noise_scale: Number(noise.value) }));
    past.addEventListener("input", () => this.#showValues());
    past.addEventListener("change", () => {
      this.#past = Number(past.value);
      onChange({ type: "kv_bias", kv_bias: this.#past });
    });
  }

  rollSeed() {
    this.seed.value = randomSeed();
    this.seed.dispatchEvent(new Event("change"));
  }

  /** Show what a stream has, or would start with. */
  show({ steps, window, sink, noise_scale, kv_bias, seed }, { takesInput = false } = {}) {
    this.#schedule = steps;
    this.#sink = sink;
    this.steps.value = steps.length;
    this.steps.max = Math.max(8, steps.length);
    this.window.value = window;
    if (noise_scale !== undefined) this.noise.value = noise_scale;
    if (kv_bias !== undefined) this.past.value = this.#past = kv_bias;
    if (seed !== undefined) this.seed.value = seed;
    this.noise.disabled = !takesInput;
    this.#showValues();
  }

  /** What a new stream should start with; before there is anything to choose from, a seed alone. */
  get choices() {
    const seed = Number(this.seed.value);
    if (!this.#schedule) return { seed };
    return {
      seed,
      steps: this.#levels(),
      window: Number(this.window.value),
      sink: this.#sink,
      noise_scale: Number(this.noise.value),
      ...(this.#past !== null && { kv_bias: this.#past }),
    };
  }

  #windowControl() {
    return { type: "window", window: Number(this.window.value), sink: this.#sink };
  }

  /** The schedule drawn with another number of steps: the same curve from its first level down to nothing. */
  #levels() {
    return resample(this.#schedule, Number(this.steps.value));
  }

  #showValues() {
    this.stepsValue.textContent = this.steps.value;
    this.noiseValue.textContent = `${Math.round(100 * this.noise.value)}%`;
    this.pastValue.textContent = `${Math.round(100 * this.past.value)}%`;
  }
}

export function resample(levels, number) {
  const curve = [...levels, 0];
  return Array.from({ length: number }, (_, i) => {
    const place = (i * levels.length) / number;
    const below = Math.floor(place);
    return curve[below] + (place - below) * (curve[below + 1] - curve[below]);
  });
}
