/** Shows the files of a message, small. */

import { make } from "./element.js";

/** @import { Attachment } from "./attachments.js" */

/** @param {Attachment} file @param {(() => void) | null} [remove] */
export function attachmentView({ kind, name, data }, remove = null) {
  const shown = {
    image: () => make("img", { src: data, alt: name, title: name }),
    sound: () => make("audio", { src: data, controls: true, title: name }),
    text: () => make("span", { class: "file-name" }, name),
  };
  const button = remove && make("button", { type: "button", class: "quiet", "aria-label": `Remove ${name}` }, "✕");
  if (button && remove) button.addEventListener("click", remove);
  return make("li", {}, shown[kind](), button);
}
