/**
 * Files that go with a message: pictures, sounds, and texts, which become part of it.
 *
 * @typedef {{ kind: "image" | "sound" | "text", name: string, data: string }} Attachment
 *   `data`: of a text the text, else a data URL
 */

const MOST_BYTES = 20_000_000;
/** What OpenAI's API calls a sound's format, by its media type. @type {Record<string, string>} */
const SOUNDS = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3", "audio/flac": "flac", "audio/x-flac": "flac", "audio/ogg": "ogg" };

/**
 * @param {File} file
 * @returns {Promise<Attachment>}
 * @throws {Error} in words for the user
 */
export async function attached(file) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} has more than 20 MB.`);
  if (file.type.startsWith("image/")) return { kind: "image", name: file.name, data: await dataUrl(file) };
  if (file.type in SOUNDS) return { kind: "sound", name: file.name, data: await dataUrl(file) };
  const bytes = new Uint8Array(await file.arrayBuffer());
  try {
    if (bytes.includes(0)) throw new Error("no text");
    return { kind: "text", name: file.name, data: new TextDecoder("utf-8", { fatal: true }).decode(bytes) };
  } catch {
    throw new Error(`${file.name} is no picture, sound or text in UTF-8: of a PDF attach its pages as pictures, or its text.`);
  }
}

/** @param {File} file @returns {Promise<string>} */
function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

/**
 * The content of a message with these files, as OpenAI's API takes it.
 * @param {string} text
 * @param {Attachment[]} files
 * @returns {string | object[]}
 */
export function contentOf(text, files) {
  const texts = files.filter(({ kind }) => kind === "text").map(({ name, data }) => `${name}:\n${fenced(data)}\n\n`);
  const whole = texts.join("") + text;
  const media = files.filter(({ kind }) => kind !== "text").map(partOf);
  return media.length ? [...media, { type: "text", text: whole }] : whole;
}

/** @param {Attachment} file */
function partOf({ kind, data }) {
  if (kind === "image") return { type: "image_url", image_url: { url: data } };
  const [, type, base64] = /^data:([^;,]*)[^,]*,(.*)$/s.exec(data) ?? ["", "", ""];
  return { type: "input_audio", input_audio: { data: base64, format: SOUNDS[type] ?? "wav" } };
}

/** A text between fences that are longer than any in it. @param {string} text */
function fenced(text) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/**
 * The attachments in a list from elsewhere; what is none of them is left out.
 * @param {unknown} list
 * @returns {Attachment[]}
 */
export function attachmentsOf(list) {
  if (!Array.isArray(list)) return [];
  return list.filter(({ kind, name, data } = {}) => {
    if (typeof name !== "string" || typeof data !== "string") return false;
    return kind === "text" || (kind === "image" && data.startsWith("data:image/")) || (kind === "sound" && data.startsWith("data:audio/"));
  }).map(({ kind, name, data }) => ({ kind, name, data }));
}
