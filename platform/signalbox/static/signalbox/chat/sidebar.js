// The list of chats.
import { get } from "./http.js";
import { element, iconButton, lamp } from "./elements.js";
import { dayGroup } from "./wording.js";

const PAGE = 40;

/** Calls `open(id)`, `rename(chat)` and `remove(chat)` when the reader asks for them, `failed(error)` when loading fails. */
export class Sidebar {
  #nav = document.getElementById("conversations");
  #url;
  #actions;
  #chats = [];
  #more = false;
  #current = null;
  #answering = new Set();

  constructor(url, actions) {
    this.#url = url;
    this.#actions = actions;
  }

  /** Load the first page for `tenant` anew. */
  async load(tenant) {
    this.tenant = tenant;
    const page = await get(`${this.#url}?tenant=${tenant}&limit=${PAGE}`);
    if (this.tenant !== tenant) return;
    this.#chats = page.data;
    this.#more = page.has_more;
    this.#render();
  }

  clear() {
    this.#chats = [];
    this.#more = false;
    this.#render();
  }

  find(id) {
    return this.#chats.find((chat) => chat.id === id) ?? null;
  }

  replace(chat) {
    this.#chats = this.#chats.map((other) => (other.id === chat.id ? { ...other, ...chat } : other));
    this.#render();
  }

  forget(id) {
    this.#chats = this.#chats.filter((chat) => chat.id !== id);
    this.#render();
  }

  select(id) {
    this.#current = id;
    this.#render();
  }

  /** Show, or no longer show, that an answer is being written in a chat. */
  answering(id, active) {
    if (this.#answering.has(id) === active) return;
    if (active) this.#answering.add(id);
    else this.#answering.delete(id);
    this.#render();
  }

  async #loadMore() {
    let page;
    try {
      page = await get(`${this.#url}?tenant=${this.tenant}&limit=${PAGE}&after=${this.#chats.at(-1).id}`);
    } catch (error) {
      this.#actions.failed(error);
      return;
    }
    const known = new Set(this.#chats.map((chat) => chat.id));
    this.#chats.push(...page.data.filter((chat) => !known.has(chat.id)));
    this.#more = page.has_more;
    this.#render();
  }

  #render() {
    const focused = document.activeElement?.closest?.("[data-chat]")?.dataset.chat;
    const groups = new Map();
    for (const chat of this.#chats) {
      const name = dayGroup(chat.updated_at);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(this.#item(chat));
    }
    const parts = [];
    for (const [name, items] of groups) {
      parts.push(element("h2", {}, name), element("ul", { class: "conversation-list", "aria-label": name }, ...items));
    }
    if (!parts.length) parts.push(element("p", { class: "conversations-empty" }, "Your chats will be kept here."));
    if (this.#more) {
      parts.push(element("button", { class: "button button-small more", type: "button", onclick: () => this.#loadMore() }, "Show more"));
    }
    this.#nav.replaceChildren(...parts);
    if (focused) this.#nav.querySelector(`[data-chat="${CSS.escape(focused)}"] a`)?.focus({ preventScroll: true });
  }

  #item(chat) {
    const title = chat.title || "New chat";
    const current = chat.id === this.#current;
    const link = element(
      "a",
      {
        class: "conversation-link",
        href: chat.url,
        title,
        "aria-current": current ? "page" : undefined,
        onclick: (event) => {
          if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
          event.preventDefault();
          this.#actions.open(chat.id);
        },
      },
      this.#answering.has(chat.id) ? lamp("green", { pulsing: true }) : null,
      element("span", { class: "conversation-title" }, title),
    );
    return element(
      "li",
      { class: "conversation", "data-chat": chat.id, "data-current": String(current) },
      link,
      element(
        "div",
        { class: "conversation-actions" },
        iconButton("pencil", `Rename “${title}”`, () => this.#actions.rename(chat)),
        iconButton("trash", `Delete “${title}”`, () => this.#actions.remove(chat)),
      ),
    );
  }
}
