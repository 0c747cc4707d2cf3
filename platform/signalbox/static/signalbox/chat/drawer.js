// On narrow screens the list of chats is a drawer: out of the way, and out of the tab order, until asked for.

export class Drawer {
  #app = document.getElementById("app");
  #sidebar = document.getElementById("sidebar");
  #main = document.getElementById("main");
  #scrim = document.getElementById("scrim");
  #opener = document.getElementById("open-sidebar");
  #narrow = matchMedia("(max-width: 52rem)");

  constructor() {
    this.#opener.addEventListener("click", () => this.open());
    this.#scrim.addEventListener("click", () => this.close());
    document.getElementById("close-sidebar").addEventListener("click", () => this.close());
    this.#sidebar.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.isOpen) return;
      event.stopPropagation();
      this.close();
    });
    this.#narrow.addEventListener("change", () => this.#apply(false));
    this.#apply(false);
  }

  get isOpen() {
    return this.#app.dataset.drawer === "open";
  }

  open() {
    this.#apply(true);
    document.getElementById("close-sidebar").focus();
  }

  close() {
    if (!this.isOpen) return;
    this.#apply(false);
    this.#opener.focus();
  }

  #apply(open) {
    this.#app.dataset.drawer = open ? "open" : "closed";
    this.#sidebar.inert = this.#narrow.matches && !open;
    this.#main.inert = this.#narrow.matches && open;
    this.#scrim.hidden = !open;
    this.#opener.setAttribute("aria-expanded", String(open));
  }
}
