import { common, createLowlight } from "lowlight";

export const highlighter = createLowlight(common);
