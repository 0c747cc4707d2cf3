// Puts the chat page together.
import { Chat } from "./chat.js";
import { showConnection } from "./connection.js";
import { anyOpen, showShortcuts } from "./dialogs.js";
import { Drawer } from "./drawer.js";
import { element } from "./elements.js";
import { get } from "./http.js";
import { ChatSocket } from "./socket.js";

const TENANT = "signalbox.tenant";
const options = JSON.parse(document.getElementById("options").textContent);
const drawer = new Drawer();

const tenantSelect = document.getElementById("tenant");

function onTenant(tenant) {
  if (!tenant) return;
  tenantSelect.value = tenant.id;
  try {
    localStorage.setItem(TENANT, tenant.id);
  } catch {
    // Storage is off in this browser: the first tenant is chosen each time.
  }
}

tenantSelect.replaceChildren(...options.tenants.map(({ id, name }) => element("option", { value: id }, name)));
document.getElementById("tenant-field").hidden = options.tenants.length < 2;

const socket = new ChatSocket(options.urls.socket, {
  // A refused socket and an unreachable server look the same from here; this request tells them apart, and brings
  // news of models and lanes.
  refused: () =>
    get(options.urls.options).then(
      (fresh) => chat.updateOptions(fresh),
      () => undefined, // the strip says already that there is no connection
    ),
});
const chat = new Chat({ options, socket, drawer, onTenant });
showConnection(socket);

function conversationInAddress() {
  const prefix = options.urls.conversation;
  return location.pathname.startsWith(prefix) ? location.pathname.slice(prefix.length) : null;
}

function keptTenant() {
  try {
    return localStorage.getItem(TENANT);
  } catch {
    return null;
  }
}

addEventListener("popstate", () => {
  const id = conversationInAddress();
  if (id) chat.open(id, { push: false });
  else chat.newChat({ push: false });
});

for (const id of ["new-chat", "new-chat-small"]) {
  document.getElementById(id).addEventListener("click", () => chat.newChat());
}
document.getElementById("rename-current").addEventListener("click", () => chat.rename(chat.current));
document.getElementById("delete-current").addEventListener("click", () => chat.remove(chat.current));
document.getElementById("show-shortcuts").addEventListener("click", showShortcuts);
tenantSelect.addEventListener("change", () => chat.switchTenant(tenantSelect.value));
for (const button of document.querySelectorAll("[data-prompt]")) {
  button.addEventListener("click", () => chat.fill(button.dataset.prompt));
}

const menu = document.getElementById("account-menu");
document.addEventListener("click", (event) => {
  if (menu.open && !menu.contains(event.target)) menu.open = false;
});

document.addEventListener("keydown", (event) => {
  if (event.isComposing || anyOpen()) return;
  if (event.key === "Escape") {
    if (menu.open) {
      menu.open = false;
      menu.querySelector("summary").focus();
    } else chat.stop();
    return;
  }
  if (event.altKey && event.code === "KeyN" && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    chat.newChat();
    return;
  }
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select")) return;
  if (event.key === "/") {
    event.preventDefault();
    chat.focus();
  } else if (event.key === "?") showShortcuts();
});

socket.connect();
chat.start(conversationInAddress(), keptTenant());
