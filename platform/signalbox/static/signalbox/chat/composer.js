// Where a message is written: the field, the model, the lane, send and stop.
import { element } from "./elements.js";

const KEPT = "signalbox.choice";
const DEFAULT_LANE = "auto";
/** By rank: full, dim, hollow. */
const LAMPS = ["lamp-green", "lamp-off", "lamp-hollow"];

/** Calls `send(text)` and `stop()`. */
export class Composer {
  #form = document.getElementById("composer");
  #field = document.getElementById("prompt");
  #model = document.getElementById("model");
  #lane = document.getElementById("lane");
  #laneLamp = document.getElementById("lane-lamp");
  #send = document.getElementById("send");
  #stop = document.getElementById("stop");
  #lanes = [];
  #answering = false;
  #blocked = false;

  constructor({ send, stop }) {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.#field.value.trim();
      if (!text || this.#send.disabled || this.#answering) return;
      this.#field.value = "";
      this.#changed();
      send(text);
    });
    this.#field.addEventListener("input", () => this.#changed());
    this.#field.addEventListener("keydown", (event) => {
      // While an input method composes, Enter picks a candidate.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#form.requestSubmit();
    });
    this.#stop.addEventListener("click", () => stop());
    this.#model.addEventListener("change", () => this.#keep());
    this.#lane.addEventListener("change", () => this.#keep());
    this.#changed();
  }

  get model() {
    return this.#model.value;
  }

  get lane() {
    return this.#lane.value;
  }

  focus() {
    this.#field.focus();
  }

  /** Put text into the field, in front of what is there. */
  fill(text) {
    this.#field.value = this.#field.value ? `${text}\n${this.#field.value}` : text;
    this.#changed();
    this.focus();
  }

  /** What may be chosen. `chosen` names the model and lane of the chat at hand; else the last choice made counts. */
  offer({ models, lanes, blocked }, chosen = {}) {
    const last = kept();
    this.#lanes = lanes;
    this.#blocked = blocked;
    fillSelect(this.#model, models.map(({ id }) => [id, id]), chosen.model ?? last.model);
    const choices = lanes.map((lane) => [lane.name, `${capitalized(lane.name)} lane`]);
    fillSelect(this.#lane, [[DEFAULT_LANE, "Default lane"], ...choices], chosen.lane ?? last.lane ?? DEFAULT_LANE);
    this.#model.disabled = !models.length;
    this.#lane.disabled = !lanes.length;
    this.#field.disabled = blocked;
    this.#field.placeholder = blocked ? "Asking is not possible here" : "Ask anything";
    this.#showLane();
    this.#changed();
  }

  /** While an answer is being written, the button stops it. */
  answering(active) {
    if (this.#answering === active) return;
    const focused = document.activeElement === this.#stop || document.activeElement === this.#send;
    this.#answering = active;
    this.#send.hidden = active;
    this.#stop.hidden = !active;
    if (focused) this.focus();
  }

  #changed() {
    this.#send.disabled = this.#blocked || !this.#field.value.trim();
    this.#field.style.height = "auto";
    this.#field.style.height = `${this.#field.scrollHeight}px`;
  }

  #keep() {
    this.#showLane();
    try {
      localStorage.setItem(KEPT, JSON.stringify({ model: this.model, lane: this.lane }));
    } catch {
      // Storage is off in this browser: the choice holds for this page.
    }
  }

  #showLane() {
    const index = this.#lanes.findIndex((lane) => lane.name === this.lane);
    const rank = this.#lanes[index]?.rank ?? 1;
    this.#laneLamp.className = `lamp ${LAMPS[Math.min(rank, LAMPS.length - 1)]}`;
    this.#lane.title = this.#lanes[index]?.description ?? "";
  }
}

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) ?? {};
  } catch {
    return {};
  }
}

function fillSelect(select, choices, chosen) {
  select.replaceChildren(...choices.map(([value, label]) => element("option", { value }, label)));
  if (choices.some(([value]) => value === chosen)) select.value = chosen;
}

function capitalized(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
