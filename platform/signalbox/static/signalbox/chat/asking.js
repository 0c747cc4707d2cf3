// Questions on their way and answers being written: which frame belongs to which answer, and what happens to them when
// the connection breaks.
import { get } from "./http.js";

/** Events that are gone: the answer is loaded instead of followed. */
const LOAD_INSTEAD = new Set(["events_expired", "stream_diverged", "generation_not_found"]);
const RESUME_PAUSE_MS = 1000;

/**
 * Asks for answers in the thread's open conversation, and feeds them. `host` is told what the rest of the page has to
 * know: `accepted(conversation)`, `ended(conversation)`, `changed()` (there is, or no longer is, an answer under way),
 * `reload(conversation)`; and it is asked for `conversationUrl(id)`.
 */
export class Asking {
  #socket;
  #thread;
  #host;
  #asked = new Map();
  #running = new Map();
  #nextRef = 1;

  constructor(socket, thread, host) {
    this.#socket = socket;
    this.#thread = thread;
    this.#host = host;
    socket.addEventListener("frame", ({ detail }) => this.#receive(detail));
    socket.addEventListener("open", () => this.#connected());
    socket.addEventListener("state", ({ detail }) => detail.state === "waiting" && thread.last?.interrupted());
  }

  /**
   * Have `messages` answered in `conversation`; none of them: its last answer anew. `known` is how many turns the
   * conversation had before: more of them tell that the question arrived.
   */
  ask(answer, { conversation, model, lane, messages, known }) {
    const ref = String(this.#nextRef++);
    const frame = { type: "generate", ref, conversation, model, service_tier: lane ?? "auto", messages };
    answer.messages = messages;
    this.#asked.set(ref, { answer, frame, known, sent: this.#socket.send(frame) });
    this.#host.changed();
  }

  /** Follow an answer that the server is still writing. */
  follow(answer, conversation) {
    this.#running.set(answer.generation, conversation);
    this.#resume(answer);
  }

  stop(answer) {
    answer.stopping();
    if (answer.generation) this.#socket.send({ type: "cancel", generation: answer.generation });
    else answer.unwanted = true;
  }

  /** Another conversation is opened: what is not accepted yet is no longer waited for. */
  leave() {
    this.#asked.clear();
  }

  #receive(frame) {
    const asked = this.#asked.get(frame.ref);
    if (asked && frame.type === "accepted") this.#accepted(asked, frame);
    else if (asked && frame.type === "error") this.#refused(asked, frame);
    else this.#told(frame);
  }

  #accepted({ answer, frame: { conversation } }, frame) {
    this.#asked.delete(frame.ref);
    answer.accepted(frame);
    this.#running.set(frame.generation, conversation);
    if (answer.unwanted) this.stop(answer);
    this.#host.accepted(conversation);
  }

  #refused({ answer }, frame) {
    this.#asked.delete(frame.ref);
    answer.fail(frame);
    this.#host.changed();
  }

  #told(frame) {
    const answer = this.#thread.answers.find(({ generation }) => generation && generation === frame.generation);
    if (frame.code === "slow_reader") {
      // The stream stopped, the answer did not.
      if (answer) setTimeout(() => this.#resume(answer), RESUME_PAUSE_MS);
      return;
    }
    if (answer?.live) this.#tell(answer, frame);
    if (frame.type === "done" || frame.type === "error") this.#ended(frame.generation);
  }

  #tell(answer, frame) {
    if (frame.type === "queued") answer.queued(frame);
    else if (frame.type === "prefill") answer.prefill(frame);
    else if (frame.type === "delta") answer.delta(frame);
    else if (frame.type === "done") answer.done(frame);
    else if (LOAD_INSTEAD.has(frame.code)) this.#host.reload(this.#running.get(answer.generation));
    else answer.fail(frame);
    this.#host.changed();
  }

  #ended(generation) {
    const conversation = this.#running.get(generation);
    this.#running.delete(generation);
    if (conversation) this.#host.ended(conversation);
  }

  #resume(answer) {
    if (!answer.live || !this.#thread.answers.includes(answer)) return;
    this.#socket.send({ type: "resume", generation: answer.generation, after: answer.lastSeq, epoch: answer.epoch });
  }

  /** The connection is there (again): go on with what was being written, and ask what was never said. */
  #connected() {
    for (const [ref, asked] of this.#asked) {
      if (!asked.sent) asked.sent = this.#socket.send(asked.frame);
      else this.#reconcile(ref, asked);
    }
    for (const answer of this.#thread.answers) if (answer.live && answer.generation) this.#resume(answer);
  }

  /** The connection broke between the question and the server's word that it was accepted. Was it? */
  async #reconcile(ref, { answer, frame, known }) {
    let turns;
    try {
      ({ turns } = await get(this.#host.conversationUrl(frame.conversation)));
    } catch (error) {
      if (this.#asked.delete(ref)) answer.fail(error);
      this.#host.changed();
      return;
    }
    if (!this.#asked.delete(ref)) return;
    if (turns.length > known) this.#host.reload(frame.conversation);
    else this.ask(answer, { ...frame, lane: frame.service_tier, known });
  }
}
