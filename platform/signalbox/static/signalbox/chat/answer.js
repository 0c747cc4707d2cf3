// One answer: what the server says about it, and how that looks.
import { copyButton, element, icon, iconButton, lamp } from "./elements.js";
import { MarkdownView } from "./markdown.js";
import { count, duration, endNote, errorTitle, laneNote, laneReason, mayRetry, queueWords, speed } from "./wording.js";

/**
 * An answer on its way or finished. `generation` is known from `accepted` on; `lastSeq` and `epoch` are where a resumed
 * stream goes on. `announce` speaks to screen readers; `retry` asks for the answer again.
 */
export class Answer {
  generation = null;
  lastSeq = 0;
  epoch;
  text = "";
  live = true;
  #announce;
  #retry;
  #facts = {};
  #frame = 0;
  #note = element("div", { class: "answer-note", hidden: true });
  #prose = element("div", { class: "prose" });
  #status = element("div", { class: "answer-status" });
  #error = element("div", { class: "answer-error", hidden: true });
  #foot = element("footer", { class: "answer-foot", hidden: true });
  #markdown = new MarkdownView(this.#prose);

  constructor({ announce, retry }) {
    this.#announce = announce;
    this.#retry = retry;
    this.element = element(
      "article",
      { class: "turn turn-answer", "aria-label": "Answer", "aria-busy": "true" },
      this.#note,
      this.#prose,
      this.#status,
      this.#error,
      this.#foot,
    );
    this.#say(lamp("off", { pulsing: true }), "Sending");
  }

  /** A stored answer, as the server tells it when the chat is loaded. */
  static fromStored(turn, callbacks) {
    const answer = new Answer(callbacks);
    const stored = turn.answer;
    if (!stored) {
      answer.#settle();
      answer.#render(turn.content, true);
      return answer;
    }
    answer.generation = stored.generation;
    answer.#learn(stored);
    if (stored.live) {
      answer.#say(lamp("amber", { pulsing: true }), "Picking up the answer");
      return answer;
    }
    answer.#settle();
    answer.text = turn.content;
    if (stored.error) answer.fail(stored.error);
    else answer.done(stored);
    return answer;
  }

  accepted(frame) {
    this.generation = frame.generation;
    this.#learn(frame);
    this.#say(lamp("amber", { pulsing: true }), `In the ${frame.lane} lane`);
  }

  queued(frame) {
    const lane = this.#facts.lane ? ` in the ${this.#facts.lane} lane` : "";
    this.#say(lamp("amber", { pulsing: true }), `Waiting${lane}: ${queueWords(frame)}`);
  }

  prefill({ done, total }) {
    const share = total ? Math.min(1, done / total) : 0;
    const bar = element("span");
    bar.style.transform = `scaleX(${share})`;
    this.#say(
      lamp("green", { pulsing: true }),
      `Reading ${count(done)} of ${count(total)} tokens`,
      element("div", { class: "progress", role: "progressbar", "aria-label": "Reading", "aria-valuenow": Math.round(share * 100) }, bar),
    );
  }

  /** Text of the stream. What was seen already (a resumed stream may repeat nothing, an old one might) is dropped. */
  delta({ seq, epoch, text }) {
    if (!this.live || seq <= this.lastSeq) return;
    this.lastSeq = seq;
    this.epoch = epoch;
    if (!text) return;
    this.text += text;
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#render(this.text, false);
      this.#say(lamp("green", { pulsing: true }), "Answering");
    });
  }

  done(frame) {
    const note = endNote(frame.finish_reason, frame.cancel_reason);
    this.#render(this.text, true);
    this.#tell(note || "Answer finished");
    this.#settle();
    this.#learn(frame);
    if (!this.text.trim()) this.#say(lamp("off"), note || "The model answered with nothing");
    this.#showFoot(this.text.trim() ? note : "");
  }

  /** Whether the answer's pace is known: not to a stream that was picked up in the middle. */
  get complete() {
    return Boolean(this.#facts.timings?.tokens_per_second) || !(this.#facts.usage?.completion_tokens > 1);
  }

  /** The record of an answer that has ended. */
  learn(record) {
    this.#learn(record);
    if (!this.#foot.hidden) this.#showFoot(endNote(record.finish_reason, record.cancel_reason));
  }

  /** The answer failed, or was refused. What has been written of it stays. */
  fail({ code, message, retry_after_ms: wait }) {
    this.#render(this.text, true);
    this.#tell(`${errorTitle(code)}. ${message}`);
    this.#settle();
    const parts = [icon("alert"), element("strong", {}, errorTitle(code)), element("p", {}, message)];
    if (mayRetry(code)) {
      const button = element(
        "button",
        { class: "button button-small", type: "button", onclick: () => this.#retry(this) },
        icon("retry"),
        "Try again",
      );
      if (wait) {
        button.disabled = true;
        setTimeout(() => (button.disabled = false), wait);
      }
      parts.push(button);
    }
    this.#error.replaceChildren(...parts);
    this.#error.hidden = false;
    this.#grown();
  }

  /** The connection is gone; the answer goes on without us. */
  interrupted() {
    if (this.live) this.#say(lamp("amber", { pulsing: true }), "Waiting for the connection");
  }

  stopping() {
    this.#say(lamp("off", { pulsing: true }), "Stopping");
  }

  #learn({ lane, requested_lane: requestedLane, reason, model, usage, timings }) {
    const known = { lane, requestedLane, reason, model, usage, timings };
    for (const [name, value] of Object.entries(known)) if (value) this.#facts[name] = value;
    const note = laneNote(this.#facts);
    this.#note.hidden = !note;
    this.#note.textContent = note;
  }

  #settle() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.live = false;
    this.element.setAttribute("aria-busy", "false");
    this.#status.hidden = true;
  }

  #render(text, finished) {
    this.text = text;
    for (const passage of this.#markdown.update(text, { finished })) this.#tell(passage);
    this.#grown();
  }

  /** Speak of what is happening now, not of what is stored. */
  #tell(text) {
    if (this.live) this.#announce(text);
  }

  #grown() {
    this.element.dispatchEvent(new Event("grown", { bubbles: true }));
  }

  #say(...parts) {
    this.#status.replaceChildren(...parts);
    this.#status.hidden = false;
    this.#grown();
  }

  #showFoot(note) {
    const { lane, reason, model, usage, timings } = this.#facts;
    const facts = [
      note && element("span", {}, note),
      lane && element("span", { title: reason ? `${lane} lane: ${laneReason(reason)}` : undefined }, `${lane} lane`),
      model && element("span", {}, model),
      usage &&
        element(
          "span",
          { title: `${count(usage.prompt_tokens)} tokens read, ${count(usage.completion_tokens)} written` },
          `${count(usage.completion_tokens)} ${usage.completion_tokens === 1 ? "token" : "tokens"}`,
        ),
      timings?.tokens_per_second && element("span", {}, speed(timings.tokens_per_second)),
      timings?.total_ms !== undefined && timings?.total_ms !== null && element("span", {}, duration(timings.total_ms)),
    ].filter(Boolean);
    const copy = copyButton("Copy answer", () => this.text);
    copy.className = "icon-button";
    const again = iconButton("retry", "Answer again", () => this.#retry(this));
    again.classList.add("answer-again");
    this.#foot.replaceChildren(this.text.trim() ? copy : "", again, element("div", { class: "answer-facts" }, ...facts));
    this.#foot.hidden = false;
    this.#grown();
  }
}
