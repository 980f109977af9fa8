// node main.mjs, beside model.wasm and parameters.txt
import { readFileSync } from "node:fs";

const { instance } = await WebAssembly.instantiate(readFileSync("model.wasm"));
const { memory, __heap_base, ...model } = instance.exports;
const p = readFileSync("parameters.txt", "utf8").trim().split("\n").map(Number);

let end = (__heap_base.value + 63) & ~63;
function array(length) {
  const start = end;
  end += (4 * length + 63) & ~63;
  if (end > memory.buffer.byteLength) memory.grow(Math.ceil((end - memory.buffer.byteLength) / 65536));
  return { start, length };
}
const numbers = ({ start, length }) => new Float32Array(memory.buffer, start, length);

const [x, y, dx, parameters, g] = [12, 12, 12, p.length, p.length].map(array);
const work = array(model.model_work_bytes(3) / 4);
numbers(x).set(Array.from({ length: 12 }, (_, i) => -1 + (2 * i) / 11));
numbers(parameters).set(p);
model.model_forward(3, x.start, parameters.start, y.start, work.start);
model.model_vjp(3, x.start, parameters.start, y.start, g.start, dx.start, work.start);
console.log([y, g, dx].map((a) => numbers(a).reduce((s, v) => s + v, 0).toFixed(4)).join(" "));
