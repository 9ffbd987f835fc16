// The switch between light and dark. Loaded before anything is drawn, so that nothing flashes.
"use strict";
(() => {
  const root = document.documentElement;
  /** @typedef {"auto" | "light" | "dark"} Theme */
  /** @type {Record<Theme, Theme>} */
  const after = { auto: "light", light: "dark", dark: "auto" };
  /** @type {NodeListOf<HTMLElement>} */
  let switches = document.querySelectorAll("[data-theme-switch]");
  const words = { auto: "as the system", light: "light", dark: "dark" };

  function kept() {
    try {
      return localStorage.getItem("sax-theme");
    } catch {
      return null; // a browser that keeps nothing for this page
    }
  }

  /** @param {Theme} theme */
  function keep(theme) {
    try {
      localStorage.setItem("sax-theme", theme);
    } catch {
      // then it holds until the page is left
    }
  }

  /** @param {Theme} theme */
  function apply(theme) {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    for (const button of switches) {
      button.setAttribute("aria-label", `Colours: ${words[theme]}; change`);
      button.title = `Colours: ${words[theme]}`;
    }
  }

  const known = kept();
  /** @type {Theme} */
  let theme = known === "light" || known === "dark" ? known : "auto";
  apply(theme);
  document.addEventListener("DOMContentLoaded", () => {
    switches = document.querySelectorAll("[data-theme-switch]");
    apply(theme);
    for (const button of switches) {
      button.addEventListener("click", () => {
        theme = after[theme];
        keep(theme);
        apply(theme);
      });
    }
  });
})();
