// A local step of every user that moves, in place: x <- x - lr v with v <- momentum v + g + (x - u) / eta, or
// v <- momentum v + g + u with TILT. Each operation is rounded by itself, as when torch does one after the other.
extern "C" __global__ void __launch_bounds__(256)
update(float* __restrict__ x, const float* __restrict__ g, float* __restrict__ v, const float* __restrict__ u,
       const bool* __restrict__ moves, int lr_bits, int momentum_bits, int inverse_bits, int d, int stride) {
  const float lr = __int_as_float(lr_bits), momentum = __int_as_float(momentum_bits);
  const float inverse = __int_as_float(inverse_bits);
  const size_t user = blockIdx.x;
  if (MOVES && !moves[user]) return;
  x += user * d, g += user * d, v += user * d, u += user * stride;
  for (int j = blockIdx.y * 256 + threadIdx.x; j < d; j += 256 * gridDim.y) {
    const float at = x[j];
    float s = g[j];
    if (PULL) s = __fadd_rn(s, __fmul_rn(__fsub_rn(at, u[j]), inverse));
    if (TILT) s = __fadd_rn(s, u[j]);
    if (MOMENTUM) v[j] = s = __fadd_rn(__fmul_rn(momentum, v[j]), s);
    x[j] = __fsub_rn(at, __fmul_rn(lr, s));
  }
}
