// The chat: what is open, what is being asked, and which frame belongs to which answer.
import { announce } from "./announcer.js";
import { askTitle, confirmDelete } from "./dialogs.js";
import { get, patch, post, remove } from "./http.js";
import { Composer } from "./composer.js";
import { Sidebar } from "./sidebar.js";
import { Thread } from "./thread.js";

/** Answers that can no longer be followed, but can be loaded. */
const LOAD_INSTEAD = new Set(["events_expired", "stream_diverged", "generation_not_found"]);
/** The stream stopped, the answer did not. */
const RESUME = new Set(["slow_reader", "stream_interrupted"]);
const RESUME_PAUSE_MS = 1000;

export class Chat {
  #options;
  #socket;
  #drawer;
  #tenant = null;
  #current = null;
  #sidebar;
  #thread;
  #composer;
  #asked = new Map();
  #elsewhere = new Map();
  #nextRef = 1;
  #visit = 0;

  constructor({ options, socket, drawer }) {
    this.#options = options;
    this.#socket = socket;
    this.#drawer = drawer;
    this.#sidebar = new Sidebar(options.urls.conversations, {
      open: (id) => this.open(id),
      rename: (chat) => this.rename(chat),
      remove: (chat) => this.remove(chat),
    });
    this.#thread = new Thread({ announce, retry: (answer) => this.#again(answer) });
    this.#composer = new Composer({ send: (text) => this.#send(text), stop: () => this.stop() });
    socket.addEventListener("frame", ({ detail }) => this.#frame(detail));
    socket.addEventListener("open", () => this.#connected());
    socket.addEventListener("state", ({ detail }) => detail.state === "waiting" && this.#thread.last?.interrupted());
  }

  get current() {
    return this.#current;
  }

  get tenants() {
    return this.#options.tenants;
  }

  /** Show what the address says. */
  async start(conversation, tenantId) {
    this.#enter(this.tenants.find(({ id }) => id === tenantId) ?? this.tenants[0] ?? null);
    if (conversation) await this.open(conversation, { push: false });
    else this.newChat({ push: false });
  }

  updateOptions(options) {
    this.#options = options;
    this.#tenant = options.tenants.find(({ id }) => id === this.#tenant?.id) ?? options.tenants[0] ?? null;
    this.#offer();
  }

  switchTenant(id) {
    this.#enter(this.tenants.find((tenant) => tenant.id === id));
    this.newChat();
  }

  newChat({ push = true } = {}) {
    this.#leave();
    this.#show(null, push);
    this.#thread.showWelcome();
    this.#offer();
    this.#answering();
    this.#composer.focus();
  }

  async open(id, { push = true } = {}) {
    const visit = this.#leave();
    const known = this.#sidebar.find(id);
    this.#show(known ?? { id, title: "", url: `${this.#options.urls.conversation}${id}` }, push);
    this.#thread.showLoading();
    this.#answering();
    await this.#load(id, visit);
    if (visit === this.#visit && matchMedia("(hover: hover)").matches) this.#composer.focus();
  }

  fill(text) {
    this.#composer.fill(text);
  }

  focus() {
    this.#composer.focus();
  }

  stop() {
    const answer = this.#thread.last;
    if (!answer?.live) return;
    answer.stopping();
    if (answer.generation) this.#socket.send({ type: "cancel", generation: answer.generation });
    else answer.unwanted = true;
  }

  async rename(chat) {
    const title = await askTitle(chat.title);
    if (!title) return;
    await this.#attempt(async () => {
      const renamed = await patch(`${this.#options.urls.conversations}/${chat.id}`, { title });
      this.#sidebar.replace(renamed);
      if (this.#current?.id === chat.id) this.#show(renamed, false);
    });
  }

  async remove(chat) {
    if (!(await confirmDelete(chat.title))) return;
    await this.#attempt(async () => {
      await remove(`${this.#options.urls.conversations}/${chat.id}`);
      this.#sidebar.forget(chat.id);
      announce("Chat deleted");
      if (this.#current?.id === chat.id) this.newChat();
    });
  }

  async #send(text) {
    const visit = this.#visit;
    const known = this.#thread.turns;
    this.#thread.addQuestion(text);
    const answer = this.#thread.newAnswer();
    this.#answering();
    if (!this.#current) {
      try {
        const request = { tenant: this.#tenant.id, model: this.#composer.model, lane: this.#chosenLane() };
        const started = await post(this.#options.urls.conversations, request);
        if (visit !== this.#visit) return;
        this.#show(started, true);
      } catch (error) {
        answer.resend = () => this.#resend(answer, text);
        answer.fail(error);
        this.#answering();
        return;
      }
    }
    this.#ask(answer, [{ role: "user", content: text }], known);
  }

  #resend(answer, text) {
    this.#thread.dropAnswer(answer);
    this.#thread.dropLastQuestion();
    this.#send(text);
  }

  /** Ask for `messages` to be answered in the open chat; none of them: for the last answer anew. */
  #ask(answer, messages, known) {
    const ref = String(this.#nextRef++);
    const frame = {
      type: "generate",
      ref,
      conversation: this.#current.id,
      model: this.#composer.model,
      service_tier: this.#chosenLane() ?? "auto",
      messages,
    };
    this.#asked.set(ref, { answer, frame, known, sent: this.#socket.send(frame) });
    this.#answering();
  }

  #again(answer) {
    if (answer.resend) {
      answer.resend();
      return;
    }
    if (this.#thread.last !== answer || answer.live) return;
    const messages = answer.generation ? [] : (answer.messages ?? []);
    this.#thread.dropAnswer(answer);
    this.#ask(this.#thread.newAnswer(), messages, this.#thread.turns);
  }

  #chosenLane() {
    return this.#composer.lane === "auto" ? null : this.#composer.lane;
  }

  #frame(frame) {
    if (frame.type === "accepted") {
      this.#accepted(frame);
      return;
    }
    if (frame.type === "error" && frame.ref !== undefined && this.#asked.has(frame.ref)) {
      const { answer, frame: asked } = this.#asked.get(frame.ref);
      this.#asked.delete(frame.ref);
      answer.messages = asked.messages;
      answer.fail(frame);
      this.#answering();
      return;
    }
    const answer = this.#thread.answers.find(({ generation }) => generation && generation === frame.generation);
    if (answer) this.#tell(answer, frame);
    if (frame.type === "done" || frame.type === "error") this.#ended(frame.generation);
  }

  #accepted(frame) {
    const asked = this.#asked.get(frame.ref);
    if (!asked) return;
    this.#asked.delete(frame.ref);
    asked.answer.accepted(frame);
    this.#elsewhere.set(frame.generation, asked.frame.conversation);
    this.#sidebar.answering(asked.frame.conversation, true);
    if (asked.answer.unwanted) this.#socket.send({ type: "cancel", generation: frame.generation });
    this.#refresh();
  }

  #tell(answer, frame) {
    if (frame.type === "queued") answer.queued(frame);
    else if (frame.type === "prefill") answer.prefill(frame);
    else if (frame.type === "delta") answer.delta(frame);
    else if (frame.type === "done") answer.done(frame);
    else if (RESUME.has(frame.code)) setTimeout(() => this.#resume(answer), RESUME_PAUSE_MS);
    else if (LOAD_INSTEAD.has(frame.code) && answer.live) this.#load(this.#current.id, this.#visit);
    else if (frame.type === "error" && answer.live) answer.fail(frame);
    this.#answering();
  }

  #ended(generation) {
    const conversation = this.#elsewhere.get(generation);
    if (!conversation) return;
    this.#elsewhere.delete(generation);
    this.#sidebar.answering(conversation, false);
  }

  #resume(answer) {
    if (!answer.live || !this.#thread.answers.includes(answer)) return;
    this.#socket.send({ type: "resume", generation: answer.generation, after: answer.lastSeq });
  }

  /** The connection is there (again): go on with what was being written, and say what was never heard. */
  #connected() {
    for (const [ref, asked] of this.#asked) {
      if (!asked.sent) asked.sent = this.#socket.send(asked.frame);
      else this.#reconcile(ref, asked);
    }
    const answer = this.#thread.last;
    if (answer?.live && answer.generation) this.#resume(answer);
  }

  /** The connection broke between asking and the server's word that it was accepted: was it? */
  async #reconcile(ref, asked) {
    await this.#attempt(async () => {
      const { turns } = await get(`${this.#options.urls.conversations}/${asked.frame.conversation}`);
      if (!this.#asked.delete(ref) || !this.#thread.answers.includes(asked.answer)) return;
      if (turns.length > asked.known && turns.at(-1)?.answer?.live !== undefined) this.#load(this.#current.id, this.#visit);
      else this.#ask(asked.answer, asked.frame.messages, asked.known);
    });
  }

  async #load(id, visit) {
    try {
      const { conversation, turns } = await get(`${this.#options.urls.conversations}/${id}`);
      if (visit !== this.#visit) return;
      if (conversation.tenant !== this.#tenant?.id) this.#enter(this.tenants.find((tenant) => tenant.id === conversation.tenant));
      this.#show(conversation, false);
      this.#offer(conversation);
      const live = this.#thread.show(turns);
      if (live) {
        this.#elsewhere.set(live.generation, id);
        this.#sidebar.answering(id, true);
        this.#resume(live);
      }
      if (!turns.length) this.#thread.showWelcome();
      this.#answering();
    } catch (error) {
      if (visit !== this.#visit) return;
      this.#thread.showProblem(error, () => this.open(id, { push: false }));
    }
  }

  /** Nothing that arrives later for what was open is shown any more. */
  #leave() {
    this.#asked.clear();
    this.#drawer.close();
    this.#visit += 1;
    return this.#visit;
  }

  #enter(tenant) {
    this.#tenant = tenant;
    this.#options.onTenant?.(tenant);
    if (tenant) this.#attempt(() => this.#sidebar.load(tenant.id));
    else this.#sidebar.clear();
    this.#offer();
  }

  #offer(chosen) {
    const blocked = !this.#tenant
      ? "You are not a member of any tenant yet: ask an operator to add you"
      : !this.#tenant.may_generate
        ? "Your role may read, but not ask"
        : !this.#options.models.length
          ? "No model is offered at the moment"
          : "";
    const lanes = this.#tenant?.lanes ?? [];
    this.#composer.offer({ models: this.#options.models, lanes, blocked }, chosen);
  }

  #show(conversation, push) {
    this.#current = conversation;
    const title = conversation?.title || "New chat";
    document.getElementById("title").textContent = title;
    document.getElementById("bar-actions").hidden = !conversation?.title;
    document.title = `${title} · Signalbox`;
    const url = conversation?.url ?? this.#options.urls.chat;
    if (push && location.pathname !== url) history.pushState(null, "", url);
    this.#sidebar.select(conversation?.id ?? null);
  }

  #refresh() {
    const current = this.#current;
    this.#attempt(async () => {
      await this.#sidebar.load(this.#tenant.id);
      const fresh = current && this.#sidebar.find(current.id);
      if (fresh && this.#current?.id === fresh.id) this.#show(fresh, false);
    });
  }

  #answering() {
    this.#composer.answering(Boolean(this.#thread.last?.live));
  }

  /** Do something that talks to the server; say so when it fails. */
  async #attempt(action) {
    try {
      await action();
    } catch (error) {
      if (error.status === undefined) throw error;
      announce(error.message);
      this.#thread.notify(error.message);
    }
  }
}
