// One WebSocket that comes back: frames in and out, reconnecting with growing pauses.
import { signIn } from "./http.js";

const SUBPROTOCOL = "signalbox.v1";
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 20_000;
/** An attempt that is not open by then has failed. */
const OPEN_TIMEOUT_MS = 10_000;
/** The server's word that the session has ended. */
const SESSION_ENDED = 4401;

/**
 * Events: `open` (each time), `frame` (`detail` is the frame), `state` (`detail` is `{ state, retryAt }` with `state` one
 * of `connecting`, `open`, `waiting`).
 */
export class ChatSocket extends EventTarget {
  state = "connecting";
  #url;
  #refused;
  #socket = null;
  #failures = 0;
  #timer = 0;

  /** `refused` is asked after each failed attempt: it finds out whether that is because of the session. */
  constructor(path, { refused }) {
    super();
    this.#url = `${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}${path}`;
    this.#refused = refused;
    addEventListener("online", () => this.retryNow());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.retryNow();
    });
  }

  connect() {
    clearTimeout(this.#timer);
    const socket = new WebSocket(this.#url, [SUBPROTOCOL]);
    this.#socket = socket;
    let opened = false;
    this.#enter("connecting");
    const slow = setTimeout(() => socket.close(), OPEN_TIMEOUT_MS);
    socket.addEventListener("open", () => {
      clearTimeout(slow);
      opened = true;
      this.#failures = 0;
      this.#enter("open");
      this.dispatchEvent(new Event("open"));
    });
    socket.addEventListener("message", ({ data }) => {
      this.dispatchEvent(new CustomEvent("frame", { detail: JSON.parse(data) }));
    });
    socket.addEventListener("close", ({ code }) => {
      clearTimeout(slow);
      if (this.#socket !== socket) return;
      this.#socket = null;
      if (code === SESSION_ENDED) signIn();
      else this.#pause(opened);
    });
  }

  /** Send a frame. False: there is no open connection, and nothing was sent. */
  send(frame) {
    if (this.state !== "open") return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  retryNow() {
    if (this.state === "waiting") this.connect();
  }

  #pause(wasOpen) {
    const longest = Math.min(FIRST_PAUSE_MS * 2 ** this.#failures, LONGEST_PAUSE_MS);
    // Spread out, so that the clients of a restarted server do not all come at once.
    const pause = longest * (0.5 + Math.random() / 2);
    this.#failures += 1;
    this.#timer = setTimeout(() => this.connect(), pause);
    this.#enter("waiting", Date.now() + pause);
    if (!wasOpen) this.#refused();
  }

  #enter(state, retryAt = 0) {
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state, retryAt } }));
  }
}
