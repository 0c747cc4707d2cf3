// The chat's own JSON endpoints: same origin, session cookie, CSRF token.

const app = document.getElementById("app");

/** An answer that is no success, in the API's error shape. */
export class RequestFailed extends Error {
  constructor(status, { message, code }) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function request(method, url, body) {
  let response;
  try {
    response = await fetch(url, {
      method,
      credentials: "same-origin",
      headers: {
        Accept: "application/json",
        "X-CSRFToken": app.dataset.csrf,
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new RequestFailed(0, { code: "connection_lost", message: "The server cannot be reached." });
  }
  if (response.status === 401) {
    signIn();
    throw new RequestFailed(401, { code: "not_authenticated", message: "You are signed out." });
  }
  if (response.status === 204) return null;
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  throw new RequestFailed(
    response.status,
    answer.error ?? { code: "internal_error", message: `The server answered with status ${response.status}.` },
  );
}

export const get = (url) => request("GET", url);
export const post = (url, body) => request("POST", url, body);
export const patch = (url, body) => request("PATCH", url, body);
export const remove = (url) => request("DELETE", url);

/** To the sign-in page, and back here from it. */
export function signIn() {
  location.assign(`${app.dataset.login}?next=${encodeURIComponent(location.pathname)}`);
}
