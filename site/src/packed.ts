import type { Packed } from "./document";

const TYPES = { float32: Float32Array, int16: Int16Array, int32: Int32Array, uint8: Uint8Array };

/** Numbers of a packed array. They are little-endian, as in every browser's memory. */
export function unpack(packed: Packed): Float32Array | Int16Array | Int32Array | Uint8Array {
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place += 1) bytes[place] = text.charCodeAt(place);
  return new TYPES[packed.type](bytes.buffer);
}
