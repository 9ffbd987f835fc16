/**
 * Makes the files of libraries that the page loads: one module for each entry, the style sheet and the
 * fonts of formulas, and the licences of all packages in them.
 *
 *     npm ci && node build.js FOLDER
 */

import { build } from "esbuild";
import { copyFile, readFile, readdir, writeFile } from "node:fs/promises";
import { join } from "node:path";

const [into] = process.argv.slice(2);
const entries = (await readdir("entries")).map((name) => join("entries", name));
const made = await build({
  entryPoints: entries,
  outdir: into,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none", // LICENSES.txt has them
  metafile: true,
});

const style = await readFile("node_modules/katex/dist/katex.min.css", "utf8");
// Every browser that reads the page's modules reads woff2.
await writeFile(join(into, "formulas.css"), style.replaceAll(/url\(fonts\/([\w-]+\.woff2)\) format\("woff2"\)(,url\([^)]*\) format\("\w+"\))*/g, 'url($1) format("woff2")'));
for (const name of await readdir("node_modules/katex/dist/fonts")) {
  if (name.endsWith(".woff2")) await copyFile(join("node_modules/katex/dist/fonts", name), join(into, name));
}

const packages = Object.keys(made.metafile.inputs).flatMap((path) => path.match(/node_modules\/((@[^/]+\/)?[^/]+)/)?.[1] ?? []);
const texts = [...new Set(packages)].sort().map(licence);
await writeFile(join(into, "LICENSES.txt"), (await Promise.all(texts)).join(`\n${"-".repeat(80)}\n\n`));

/** @param {string} name */
async function licence(name) {
  const folder = join("node_modules", name);
  const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  const file = (await readdir(folder)).find((each) => /^licen[cs]e/i.test(each));
  if (!file) throw new Error(`${name} has no licence`);
  return `${name} ${version} (${license})\n\n${(await readFile(join(folder, file), "utf8")).trim()}\n`;
}
