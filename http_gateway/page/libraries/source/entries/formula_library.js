import katex from "katex";

export const render = katex.render;
