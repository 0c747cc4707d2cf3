// What the server's codes mean, in plain words.

/** Title, and whether asking again can help. The server's own message says the rest. */
const ERRORS = {
  queue_full: ["Too many questions are waiting", true],
  overloaded: ["The server is at its limit", true],
  insufficient_quota: ["Your tenant's budget does not reach for this", false],
  rate_limit_exceeded: ["Your tenant asks for too much in a minute", true],
  concurrency_limit_exceeded: ["Too many of your tenant's answers are being written", true],
  queue_unavailable: ["The server's queue cannot be reached", true],
  service_unavailable: ["A part of the server cannot be reached", true],
  internal_error: ["The server failed on this", true],
  context_length_exceeded: ["This chat has become too long for the model", false],
  kv_memory_exceeded: ["This chat has become too long for the server's memory", false],
  no_entitlement: ["Your tenant may not use this lane", false],
  unknown_lane: ["This lane does not exist any more", false],
  model_not_found: ["This model is not offered any more", false],
  insufficient_scope: ["Your role may read, but not ask", false],
  access_revoked: ["Your access was taken back", false],
  not_a_member: ["You are not a member of this tenant any more", false],
  not_authenticated: ["You are signed out", false],
  answer_in_progress: ["The last answer is still being written", true],
  conversation_changed: ["This chat has changed in another window", false],
  conversation_not_found: ["This chat does not exist any more", false],
  generation_expired: ["The question waited too long", true],
  queue_wait_exceeded: ["The question waited too long", true],
  frame_too_large: ["This message is too long to send", false],
  connection_lost: ["The connection was lost", true],
};

export function errorTitle(code) {
  return ERRORS[code]?.[0] ?? "The answer failed";
}

export function mayRetry(code) {
  return ERRORS[code]?.[1] ?? true;
}

/** How an answer ended, where that is worth a word. */
export function endNote(finishReason, cancelReason) {
  if (finishReason === "length") return "Cut off: the answer reached its length limit";
  switch (cancelReason) {
    case "client_requested":
      return "Stopped";
    case "access_revoked":
      return "Stopped: access was taken back";
    case "operator_requested":
      return "Stopped by an operator";
    case "detached":
    case "client_disconnected":
      return "Stopped: nobody was reading";
    default:
      return cancelReason ? "Stopped" : "";
  }
}

const OTHER_LANE = {
  not_entitled: "Your tenant is not entitled to it",
  stepped_down: "What your tenant may use of it is used up",
};

/** Why an answer ran in another lane than was asked for, or "" when it did not. */
export function laneNote({ lane, requestedLane, reason }) {
  if (!OTHER_LANE[reason] || !requestedLane) return "";
  return `You asked for the ${requestedLane} lane. ${OTHER_LANE[reason]}, so this ran in the ${lane} lane.`;
}

const REASONS = {
  requested: "as you asked",
  key_default: "the key's default",
  tenant_default: "the default",
  not_entitled: "the next lower one you may use",
  stepped_down: "the other was used up",
};

export function laneReason(reason) {
  return REASONS[reason] ?? reason;
}

const ordinals = new Intl.PluralRules("en", { type: "ordinal" });
const SUFFIX = { one: "st", two: "nd", few: "rd", other: "th" };
const number = new Intl.NumberFormat("en");

export function queueWords({ position, eta_ms: eta }) {
  const place = position <= 1 ? "next in line" : `${position}${SUFFIX[ordinals.select(position)]} in line`;
  return eta === null || eta === undefined ? place : `${place}, about ${duration(eta)}`;
}

export function count(value) {
  return number.format(value);
}

/** A duration for people: `0.4 s`, `12 s`, `3 min`. */
export function duration(ms) {
  if (ms < 9_950) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 90_000) return `${Math.round(ms / 1000)} s`;
  return `${Math.round(ms / 60_000)} min`;
}

/** Tokens per second: one decimal while it tells something. */
export function speed(value) {
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} tokens/s`;
}

/** Heading of the group that a chat of this time is listed in. */
export function dayGroup(iso, now = new Date()) {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate());
  const days = Math.ceil((midnight - new Date(iso)) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days <= 7) return "Last 7 days";
  if (days <= 30) return "Last 30 days";
  return "Older";
}
