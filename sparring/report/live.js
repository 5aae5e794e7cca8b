// Check whether the run has continued, and reload the page. If the reader has opened something, only offer to reload.
(function () {
  "use strict";
  const INTERVAL = 3000;
  const bar = document.createElement("p");
  bar.setAttribute("role", "status");
  bar.className = "live";
  document.body.prepend(bar);
  let shown = null;

  // A reader who has opened something is reading, so the page does not change.
  let isRead = false;
  for (const kind of ["click", "input"]) {
    document.addEventListener(kind, (event) => {
      isRead ||= event.target.closest("#episodes, #tasks, #findings, details") !== null;
    });
  }

  function say(text, canReload) {
    bar.textContent = text;
    if (canReload) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Show it";
      button.addEventListener("click", () => location.reload());
      bar.append(" ", button);
    }
  }

  async function look() {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      const { version, said } = await answer.json();
      if (shown === null) {
        shown = version;
      }
      if (version === shown) {
        say("Live: " + said, false);
      } else if (isRead) {
        say("Live: " + said + ". The page is outdated.", true);
        return;
      } else {
        location.reload();
        return;
      }
    } catch (error) {
      say("No longer live: sparring watch does not answer.", false);
    }
    setTimeout(look, INTERVAL);
  }

  look();
})();
