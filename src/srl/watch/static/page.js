// Shows the view that the address names: all runs, or one.
import { ListView } from "./list.js";
import { RunView } from "./run.js";

// The token is in a cookie now: it must not stay in the address, nor in the history.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);

const place = document.getElementById("content");
const connection = document.getElementById("connection");
let view = null;

function setTitle(text) {
  document.getElementById("title").textContent = text;
  document.title = `${text} – SRL`;
}

function follow() {
  view?.close();
  delete document.body.dataset.state;
  const found = location.hash.match(/^#\/run\/(.+)$/);
  document.getElementById("home").hidden = !found;
  place.replaceChildren();
  view = found ? new RunView(place, decodeURIComponent(found[1]), setTitle) : new ListView(place, setTitle);
  view.source.onopen = () => { connection.textContent = "connected"; connection.className = ""; };
  view.source.onerror = () => { connection.textContent = "no connection; trying again"; connection.className = "bad"; };
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  place.focus();
});
addEventListener("hashchange", () => {
  follow();
  place.focus({ preventScroll: true });
  scrollTo(0, 0);
});
follow();
