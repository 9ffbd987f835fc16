/** Quantities as people read them. */

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** @param {number} count */
export function bytes(count) {
  if (!(count > 0)) return "0 B";
  const step = Math.min(SIZES.length - 1, Math.floor(Math.log2(count) / 10));
  return `${(count / 1024 ** step).toFixed(step ? 1 : 0)} ${SIZES[step]}`;
}

/** @param {number} seconds */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(0)} ms`;
  return seconds < 60 ? `${seconds.toFixed(1)} s` : `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}

/** @param {number} number */
export function figure(number) {
  if (!Number.isFinite(number)) return "–";
  if (Math.abs(number) >= 100) return Math.round(number).toLocaleString("en");
  return String(Number(number.toFixed(Math.abs(number) < 10 ? 1 : 0)));
}

/** @param {number} share from 0 to 1 */
export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  const hundredths = share * 100;
  if (hundredths > 0 && hundredths < 0.1) return "<0.1%";
  return `${hundredths.toFixed(hundredths < 10 && hundredths > 0 ? 1 : 0)}%`;
}
