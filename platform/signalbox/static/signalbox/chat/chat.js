// The chat: which tenant, which conversation, and what the page shows of them.
import { announce } from "./announcer.js";
import { Asking } from "./asking.js";
import { Composer } from "./composer.js";
import { askTitle, confirmDelete } from "./dialogs.js";
import { get, patch, post, remove } from "./http.js";
import { Sidebar } from "./sidebar.js";
import { Thread } from "./thread.js";

export class Chat {
  #options;
  #drawer;
  #onTenant;
  #tenant = null;
  #current = null;
  #sidebar;
  #thread;
  #composer;
  #asking;
  /** Counts what was opened: what arrives late for something else is not shown. */
  #visit = 0;

  constructor({ options, socket, drawer, onTenant }) {
    this.#options = options;
    this.#drawer = drawer;
    this.#onTenant = onTenant;
    this.#sidebar = new Sidebar(options.urls.conversations, {
      open: (id) => this.open(id),
      rename: (conversation) => this.rename(conversation),
      remove: (conversation) => this.remove(conversation),
      failed: (error) => this.#thread.notify(error.message),
    });
    this.#thread = new Thread({ announce, retry: (answer) => this.#again(answer) });
    this.#composer = new Composer({ send: (text) => this.#say(text), stop: () => this.stop() });
    this.#asking = new Asking(socket, this.#thread, {
      accepted: (id) => this.#accepted(id),
      ended: (id) => this.#ended(id),
      changed: () => this.#answering(),
      reload: (id) => id === this.#current?.id && this.#load(id, this.#visit),
      conversationUrl: (id) => this.#url(id),
    });
  }

  get current() {
    return this.#current;
  }

  /** Show what the address says. */
  async start(conversation, tenantId) {
    const { tenants } = this.#options;
    this.#enter(tenants.find(({ id }) => id === tenantId) ?? tenants[0] ?? null);
    if (conversation) await this.open(conversation, { push: false });
    else this.newChat({ push: false });
  }

  /** Other models, lanes or memberships than when the page was loaded. */
  updateOptions(options) {
    this.#options = options;
    this.#tenant = options.tenants.find(({ id }) => id === this.#tenant?.id) ?? options.tenants[0] ?? null;
    this.#offer({ model: this.#composer.model, lane: this.#composer.lane });
  }

  switchTenant(id) {
    this.#enter(this.#options.tenants.find((tenant) => tenant.id === id));
    this.newChat();
  }

  newChat({ push = true } = {}) {
    this.#leave();
    this.#show(null, push);
    this.#offer();
    this.#thread.showWelcome();
    this.#answering();
    this.#composer.focus();
  }

  async open(id, { push = true } = {}) {
    const visit = this.#leave();
    this.#show(this.#sidebar.find(id) ?? { id, title: "", url: `${this.#options.urls.conversation}${id}` }, push);
    this.#thread.showLoading();
    this.#answering();
    await this.#load(id, visit);
    // On a touch screen focus would bring the keyboard up.
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
    if (answer?.live) this.#asking.stop(answer);
  }

  async rename(conversation) {
    const title = await askTitle(conversation.title);
    if (!title) return;
    await this.#attempt(async () => {
      const renamed = await patch(this.#url(conversation.id), { title });
      this.#sidebar.replace(renamed);
      if (this.#current?.id === renamed.id) this.#show(renamed, false);
    });
  }

  async remove(conversation) {
    if (!(await confirmDelete(conversation.title))) return;
    await this.#attempt(async () => {
      await remove(this.#url(conversation.id));
      this.#sidebar.forget(conversation.id);
      announce("Chat deleted");
      if (this.#current?.id === conversation.id) this.newChat();
    });
  }

  #url(id) {
    return `${this.#options.urls.conversations}/${id}`;
  }

  #chosen() {
    const { model, lane } = this.#composer;
    return { model, lane: lane === "auto" ? null : lane };
  }

  async #say(text) {
    const visit = this.#visit;
    const known = this.#thread.turns;
    this.#thread.addQuestion(text);
    const answer = this.#thread.newAnswer();
    this.#answering();
    if (!this.#current) {
      try {
        const started = await post(this.#options.urls.conversations, { tenant: this.#tenant.id, ...this.#chosen() });
        if (visit !== this.#visit) return;
        this.#show(started, true);
      } catch (error) {
        answer.sayAgain = text;
        answer.fail(error);
        this.#answering();
        return;
      }
    }
    this.#ask(answer, [{ role: "user", content: text }], known);
  }

  #ask(answer, messages, known) {
    this.#asking.ask(answer, { conversation: this.#current.id, ...this.#chosen(), messages, known });
  }

  /** Ask for the last answer again: as before if it was refused, else anew for the question that is stored. */
  #again(answer) {
    if (this.#thread.last !== answer || answer.live) return;
    this.#thread.dropAnswer(answer);
    if (answer.sayAgain) {
      this.#thread.dropLastQuestion();
      this.#say(answer.sayAgain);
      return;
    }
    const messages = answer.generation ? [] : answer.messages;
    const known = this.#thread.turns - (messages.length ? 1 : 0);
    this.#ask(this.#thread.newAnswer(), messages, known);
  }

  #accepted(id) {
    this.#sidebar.answering(id, true);
    this.#attempt(async () => {
      await this.#sidebar.load(this.#tenant.id);
      const fresh = this.#sidebar.find(id);
      if (fresh && this.#current?.id === id) this.#show(fresh, false);
    });
  }

  #ended(id) {
    this.#sidebar.answering(id, false);
    const { last } = this.#thread;
    if (this.#current?.id === id && last && !last.live && !last.complete) this.#learn(id, last);
  }

  /** An answer that was picked up in the middle: what its stream could not tell comes with its record. */
  async #learn(id, answer) {
    await this.#attempt(async () => {
      const { turns } = await get(this.#url(id));
      const stored = turns.findLast((turn) => turn.answer?.generation === answer.generation);
      if (stored && !stored.answer.live) answer.learn(stored.answer);
    });
  }

  async #load(id, visit) {
    try {
      const { conversation, turns } = await get(this.#url(id));
      if (visit !== this.#visit) return;
      const { tenants } = this.#options;
      if (conversation.tenant !== this.#tenant?.id) this.#enter(tenants.find(({ id: of }) => of === conversation.tenant));
      this.#show(conversation, false);
      this.#offer(conversation);
      const live = this.#thread.show(turns);
      if (live) {
        this.#sidebar.answering(id, true);
        this.#asking.follow(live, id);
      }
      if (!turns.length) this.#thread.showWelcome();
    } catch (error) {
      if (error.status === undefined) throw error;
      if (visit === this.#visit) this.#thread.showProblem(error, () => this.open(id, { push: false }));
    }
    this.#answering();
  }

  #leave() {
    this.#asking.leave();
    this.#drawer.close();
    this.#visit += 1;
    return this.#visit;
  }

  #enter(tenant) {
    this.#tenant = tenant;
    this.#onTenant(tenant);
    if (tenant) this.#attempt(() => this.#sidebar.load(tenant.id));
    else this.#sidebar.clear();
    this.#offer();
  }

  #offer(chosen) {
    const { models } = this.#options;
    const blocked = this.#blocked();
    this.#composer.offer({ models, lanes: this.#tenant?.lanes ?? [], blocked: Boolean(blocked) }, chosen);
    this.#thread.welcomeIs(blocked);
  }

  /** Why nothing can be asked, or null. */
  #blocked() {
    if (!this.#tenant) return ["You belong to no tenant yet", "An operator can make you a member of one. Then load this page again."];
    if (!this.#tenant.may_generate) return ["You may read here, but not ask", `Your role in ${this.#tenant.name} is viewer.`];
    if (!this.#tenant.lanes.length) return ["There is no lane for you", `${this.#tenant.name} is not entitled to any lane at the moment.`];
    if (!this.#options.models.length) return ["There is no model to ask", "An operator adds one with `manage.py model add`."];
    return null;
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
