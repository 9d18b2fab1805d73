// The gradient of kernels and biases. A warp has the sums for one input channel and BLOCK output channels, all taps, in
// registers: a lane adds up its images, then lanes are added up. Each share of the images leaves its own sums, which
// `add_shares` adds up, so that the order of additions is always the same.
//
// Going along a row of cells, the inputs under the kernel are a ring of RING columns: each step loads POOL_W new ones.
constexpr int BLOCKS = up(OUTPUTS, BLOCK);
constexpr int DEPTH = KERNEL_H + POOL_H - 1;                           // rows of input under a cell
constexpr int RING = up(KERNEL_W + POOL_W - 1, POOL_W) * POOL_W;
constexpr int ROUNDS = RING / POOL_W;                                  // steps until the ring is where it was
constexpr int STEPS = CELLS_W <= UNROLL ? CELLS_W : ROUNDS;            // steps that are unrolled
constexpr bool INSIDE_H = PAD_H == 0;
constexpr bool INSIDE_W = PAD_W == 0;

// A column of inputs, from x down, into a slot of the ring; `row` and `column` say where it lies in the image.
__device__ __forceinline__ void load_column(float (&ring)[DEPTH][RING], int slot, const float* x, int row, int column,
                                            int n) {
  bool column_inside = INSIDE_W || (unsigned)column < WIDTH;
#pragma unroll
  for (int i = 0; i < DEPTH; i++) {
    bool inside = column_inside && (INSIDE_H || (unsigned)(row + i) < HEIGHT);
    ring[i][slot] = inside ? __ldg(x + i * WIDTH * n) : 0.0f;
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
weight_gradient(const float* __restrict__ x, const float* __restrict__ g, const byte* __restrict__ codes,
                float* __restrict__ shares, int given, int code_stride) {
  const int n = COUNT ? COUNT : given;
  __shared__ float room[WARPS][32][33];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, user = blockIdx.z;
  const int c = blockIdx.y % CHANNEL_PARTS * CHANNEL_WARPS + warp % CHANNEL_WARPS;
  const int block = blockIdx.y / CHANNEL_PARTS * (WARPS / CHANNEL_WARPS) + warp / CHANNEL_WARPS;
  if (c >= INPUTS || block >= BLOCKS) return;
  x += ((size_t)user * INPUTS + c) * HEIGHT * WIDTH * n;
  g += ((size_t)user * OUTPUTS + block * BLOCK) * CELLS * n;
  codes += (size_t)user * code_stride * 4 + (size_t)block * BLOCK * CELLS * n;

  float sums[BLOCK][TAPS], bias[BLOCK];
#pragma unroll
  for (int o = 0; o < BLOCK; o++) {
    bias[o] = 0.0f;
#pragma unroll
    for (int t = 0; t < TAPS; t++) sums[o][t] = 0.0f;
  }
#pragma unroll 1
  for (int group = blockIdx.x; group < up(n, 32); group += gridDim.x) {
    const int next = min((group + gridDim.x) * 32, n - 32);
    if (AHEAD && group + gridDim.x < up(n, 32) && n >= 32) {
      if (warp < CHANNEL_WARPS) fetch<128>(x + next, HEIGHT * WIDTH, (size_t)n * 4);
      if (warp % CHANNEL_WARPS == 0) {
        const int rows = min(BLOCK, OUTPUTS - block * BLOCK) * CELLS;
        fetch<128>(g + next, rows, (size_t)n * 4);
        if (CODED) fetch<32>(codes + next, rows, (size_t)n);
      }
    }
    const bool live = WHOLE || group * 32 + lane < n;
    const int image = WHOLE ? group * 32 + lane : min(group * 32 + lane, n - 1);
#pragma unroll 1
    for (int cell_y = 0; cell_y < CELLS_H; cell_y++) {
      const int row = cell_y * POOL_H - PAD_H;
      const float* in = x + (row * WIDTH - PAD_W) * n + image;
      const float* g_at = g + cell_y * CELLS_W * n + image;
      const byte* code_at = codes + cell_y * CELLS_W * n + image;
      float ring[DEPTH][RING];
#pragma unroll
      for (int j = 0; j < KERNEL_W - 1; j++) load_column(ring, j, in + j * n, row, j - PAD_W, n);
#pragma unroll 1
      for (int start = 0; start < CELLS_W; start += STEPS) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
          if (CELLS_W % STEPS != 0 && start + s >= CELLS_W) break;
#pragma unroll
          for (int j = KERNEL_W - 1; j < KERNEL_W - 1 + POOL_W; j++)
            load_column(ring, (s * POOL_W + j) % RING, in + (s * POOL_W + j) * n, row,
                        (start + s) * POOL_W + j - PAD_W, n);
#pragma unroll
          for (int o = 0; o < BLOCK; o++) {
            const bool there = live && (OUTPUTS % BLOCK == 0 || block * BLOCK + o < OUTPUTS);
            float one = there ? __ldg(g_at + (o * CELLS + s) * n) : 0.0f;
            int code = CODED && there ? __ldg(code_at + (o * CELLS + s) * n) : 0;
            one = let_through(one, code);
            if (c == 0) {
              if (MAXIMUM) {
                bias[o] += RELU && code == DEAD ? 0.0f : one;
              } else {
#pragma unroll
                for (int e = 0; e < ENTRIES; e++) bias[o] += entry(one, code, e);
              }
            }
#pragma unroll
            for (int e = 0; e < ENTRIES; e++) {
              const float grad = entry(one, code, e);
#pragma unroll
              for (int ky = 0; ky < KERNEL_H; ky++)
#pragma unroll
                for (int kx = 0; kx < KERNEL_W; kx++)
                  sums[o][ky * KERNEL_W + kx] =
                      fmaf(grad, ring[e / POOL_W + ky][(s * POOL_W + e % POOL_W + kx) % RING],
                           sums[o][ky * KERNEL_W + kx]);
            }
          }
        }
        in += STEPS * POOL_W * n;
        g_at += STEPS * n;
        code_at += STEPS * n;
      }
    }
  }

  // Lanes are added up through shared memory, 32 sums at a time: lane t adds up sum t of all lanes.
  float(*mine)[33] = room[warp];
  float* share = shares + ((size_t)blockIdx.x * gridDim.z + user) * OUTPUTS * (INPUTS * TAPS + 1);
#pragma unroll
  for (int first = 0; first < BLOCK * (TAPS + 1); first += 32) {
#pragma unroll
    for (int t = first; t < first + 32; t++)
      if (t < BLOCK * (TAPS + 1)) mine[t - first][lane] = t < BLOCK * TAPS ? sums[t / TAPS][t % TAPS] : bias[t - BLOCK * TAPS];
    __syncwarp();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; i++) sum += mine[lane][i];
    __syncwarp();
    const int t = first + lane, o = t < BLOCK * TAPS ? t / TAPS : t - BLOCK * TAPS, out = block * BLOCK + o;
    if (o >= BLOCK || out >= OUTPUTS) continue;
    if (t < BLOCK * TAPS)
      share[(out * INPUTS + c) * TAPS + t % TAPS] = sum;
    else if (c == 0)
      share[OUTPUTS * INPUTS * TAPS + out] = sum;
  }
}
