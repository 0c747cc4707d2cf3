// The column of turns: filling it, and keeping its end in view while the reader is there.
import { Answer } from "./answer.js";
import { element } from "./elements.js";

/** How near to the end, in pixels, counts as reading along. */
const NEAR_END = 80;
const TOAST_MS = 5000;
const WELCOME = ["What would you like to know?", "Your words stay on this server: the model runs here, in the lane you choose."];

export class Thread {
  #thread = document.getElementById("thread");
  #scroller = document.getElementById("scroller");
  #toLatest = document.getElementById("to-latest");
  #welcome = document.getElementById("welcome");
  #loading = document.getElementById("loading");
  #callbacks;
  #following = true;
  #lastTop = 0;
  answers = [];

  constructor(callbacks) {
    this.#callbacks = callbacks;
    this.#thread.addEventListener("grown", () => this.#grown());
    this.#scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.#toLatest.addEventListener("click", () => this.toEnd({ smooth: true }));
    new ResizeObserver(() => this.#grown()).observe(this.#scroller);
  }

  get turns() {
    return this.#thread.childElementCount;
  }

  get last() {
    return this.answers.at(-1) ?? null;
  }

  showWelcome() {
    this.clear();
    this.#welcome.hidden = false;
  }

  /** What stands in an empty chat: suggestions, or why nothing can be asked (`[title, text]`). */
  welcomeIs(blocked) {
    const [title, text] = blocked ?? WELCOME;
    document.getElementById("welcome-title").textContent = title;
    document.getElementById("welcome-text").textContent = text;
    document.getElementById("suggestions").hidden = Boolean(blocked);
  }

  showLoading() {
    this.clear();
    this.#loading.hidden = false;
  }

  clear() {
    this.#thread.replaceChildren();
    this.answers = [];
    this.#welcome.hidden = true;
    this.#loading.hidden = true;
    this.#toLatest.hidden = true;
    this.#following = true;
  }

  /** Show stored turns. Returns the answer that is still being written, if one is. */
  show(turns) {
    this.clear();
    for (const turn of turns) {
      if (turn.role === "assistant") this.addAnswer(Answer.fromStored(turn, this.#callbacks));
      else if (turn.role === "user") this.addQuestion(turn.content);
    }
    this.toEnd();
    return this.answers.find((answer) => answer.live) ?? null;
  }

  addQuestion(text) {
    this.#welcome.hidden = true;
    this.#thread.append(element("article", { class: "turn turn-user", "aria-label": "You" }, text));
    this.toEnd();
  }

  addAnswer(answer) {
    this.answers.push(answer);
    this.#thread.append(answer.element);
    this.toEnd();
    return answer;
  }

  newAnswer() {
    return this.addAnswer(new Answer(this.#callbacks));
  }

  dropAnswer(answer) {
    answer.element.remove();
    this.answers = this.answers.filter((other) => other !== answer);
  }

  dropLastQuestion() {
    this.#thread.lastElementChild?.remove();
  }

  /** The chat could not be loaded. */
  showProblem({ code, message }, retry) {
    this.clear();
    const answer = new Answer({ ...this.#callbacks, retry });
    this.addAnswer(answer);
    answer.fail({ code, message });
  }

  /** Something else went wrong: a line that goes by itself. */
  notify(message) {
    const line = element("div", { class: "toast", role: "status" }, message);
    document.getElementById("main").append(line);
    setTimeout(() => line.remove(), TOAST_MS);
  }

  toEnd({ smooth = false } = {}) {
    this.#following = true;
    this.#scroller.scrollTo({ top: this.#scroller.scrollHeight, behavior: smooth ? "smooth" : "instant" });
    this.#toLatest.hidden = true;
  }

  #grown() {
    if (this.#following) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    else this.#toLatest.hidden = this.#nearEnd();
  }

  #scrolled() {
    const top = this.#scroller.scrollTop;
    // Growing text never scrolls upwards: only a reader does.
    if (top < this.#lastTop - 1) this.#following = this.#nearEnd();
    else if (this.#nearEnd()) this.#following = true;
    this.#lastTop = top;
    this.#toLatest.hidden = this.#following || this.#nearEnd();
  }

  #nearEnd() {
    return this.#scroller.scrollHeight - this.#scroller.scrollTop - this.#scroller.clientHeight < NEAR_END;
  }
}
