// The gradient of kernels and biases. A warp has the sums for CHANNELS input and BLOCK output channels, all taps, in
// registers: a lane adds up its images, then lanes are added up. Each share of the images leaves its own sums, which
// `add_shares` adds up, so that the order of additions is always the same.
//
// Going along a row of cells, the inputs under the kernel are a ring of RING columns. Every step loads what the next one
// needs before it computes: POOL_W columns, or those that the next row of cells begins with.
constexpr int BLOCKS = up(OUTPUTS, BLOCK), CHANNEL_BLOCKS = up(INPUTS, CHANNELS), KEPT = CHANNELS * TAPS;
constexpr int DEPTH = KERNEL_H + POOL_H - 1;                            // rows of input under a cell
constexpr int FIRST = KERNEL_W + POOL_W - 1;                            // columns of input under a cell
constexpr int RING = up(FIRST + POOL_W, POOL_W) * POOL_W;               // those of the next one too
constexpr int ROUNDS = RING / POOL_W;                                   // steps until the ring is where it was
constexpr int STEPS = CELLS_W <= UNROLL ? CELLS_W : ROUNDS;             // steps that are unrolled
constexpr bool INSIDE_H = PAD_H == 0;
constexpr bool INSIDE_W = PAD_W == 0;

// A column of inputs, from x down; `row` and `column` say where it lies in the image.
__device__ __forceinline__ void load_column(float (&to)[DEPTH], const float* x, int row, int column, int n) {
  bool column_inside = INSIDE_W || (unsigned)column < WIDTH;
#pragma unroll
  for (int i = 0; i < DEPTH; i++) {
    bool inside = column_inside && (INSIDE_H || (unsigned)(row + i) < HEIGHT);
    to[i] = inside ? __ldg(x + i * WIDTH * n) : 0.0f;
  }
}

// The columns under the first cell of a row of cells.
__device__ __forceinline__ void load_first(float (&to)[CHANNELS][FIRST][DEPTH], const float* x, int row, int n) {
#pragma unroll
  for (int c = 0; c < CHANNELS; c++)
#pragma unroll
    for (int j = 0; j < FIRST; j++) load_column(to[c][j], x + (c * HEIGHT * WIDTH + j) * n, row, j - PAD_W, n);
}

// The gradients at a cell's pooled values, and their codes.
struct Cell {
  float g[BLOCK];
  int code[BLOCK];
};

__device__ __forceinline__ void load_cell(Cell& to, const float* g, const byte* codes, int outputs, bool live, int n) {
#pragma unroll
  for (int o = 0; o < BLOCK; o++) {
    const bool there = live && (OUTPUTS % BLOCK == 0 || o < outputs);
    to.g[o] = there ? __ldg(g + o * CELLS * n) : 0.0f;
    to.code[o] = CODED && there ? __ldg(codes + o * CELLS * n) : 0;
  }
}

// One cell and output channel where maxima are over two rows: of the inputs under each tap those of the maximum's row are
// chosen first, and only then multiplied. A choice goes by another unit than a multiplication, and serves POOL_W of them.
__device__ __forceinline__ void add_chosen(float (&sums)[KEPT], const float (&ring)[CHANNELS][RING][DEPTH], int step,
                                           float g, int code) {
  const bool second = code >= POOL_W;
  if (RELU && code == DEAD) g = 0.0f;
  float grad[POOL_W];
#pragma unroll
  for (int e = 0; e < POOL_W; e++) grad[e] = code % POOL_W == e ? g : 0.0f;
#pragma unroll
  for (int c = 0; c < CHANNELS; c++)
#pragma unroll
    for (int i = 0; i < KERNEL_H; i++) {
      float row[FIRST];
#pragma unroll
      for (int j = 0; j < FIRST; j++) {
        const float* column = ring[c][(step * POOL_W + j) % RING];
        row[j] = second ? column[(i + 1) % DEPTH] : column[i];
      }
#pragma unroll
      for (int e = 0; e < POOL_W; e++)
#pragma unroll
        for (int j = 0; j < KERNEL_W; j++)
          sums[c * TAPS + i * KERNEL_W + j] = fmaf(grad[e], row[e + j], sums[c * TAPS + i * KERNEL_W + j]);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
weight_gradient(const float* __restrict__ x, const float* __restrict__ g, const byte* __restrict__ codes,
                float* __restrict__ shares, int given, int code_stride) {
  const int n = COUNT ? COUNT : given;
  __shared__ float room[WARPS][32][33];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, user = blockIdx.z;
  const int channels = blockIdx.y % CHANNEL_PARTS * CHANNEL_WARPS + warp % CHANNEL_WARPS;
  const int first_channel = min(channels * CHANNELS, INPUTS - CHANNELS);  // the last block may meet the one before it
  const int block = blockIdx.y / CHANNEL_PARTS * (WARPS / CHANNEL_WARPS) + warp / CHANNEL_WARPS;
  if (channels >= CHANNEL_BLOCKS || block >= BLOCKS) return;
  x += ((size_t)user * INPUTS + first_channel) * HEIGHT * WIDTH * n;
  g += ((size_t)user * OUTPUTS + block * BLOCK) * CELLS * n;
  codes += (size_t)user * code_stride * 4 + (size_t)block * BLOCK * CELLS * n;

  float sums[BLOCK][KEPT], bias[BLOCK];
#pragma unroll
  for (int o = 0; o < BLOCK; o++) {
    bias[o] = 0.0f;
#pragma unroll
    for (int t = 0; t < KEPT; t++) sums[o][t] = 0.0f;
  }
#pragma unroll 1
  for (int group = blockIdx.x; group < up(n, 32); group += gridDim.x) {
    const bool live = WHOLE || group * 32 + lane < n;
    const int image = WHOLE ? group * 32 + lane : min(group * 32 + lane, n - 1);
    const float* in = x - (PAD_H * WIDTH + PAD_W) * n + image;
    const float* g_at = g + image;
    const byte* code_at = codes + image;
    float first[CHANNELS][FIRST][DEPTH];
    Cell next;
    load_first(first, in, -PAD_H, n);
    load_cell(next, g_at, code_at, OUTPUTS - block * BLOCK, live, n);
#pragma unroll 1
    for (int cell_y = 0; cell_y < CELLS_H; cell_y++) {
      const int row = cell_y * POOL_H - PAD_H;
      float ring[CHANNELS][RING][DEPTH];
#pragma unroll
      for (int c = 0; c < CHANNELS; c++)
#pragma unroll
        for (int j = 0; j < FIRST; j++)
#pragma unroll
          for (int i = 0; i < DEPTH; i++) ring[c][j][i] = first[c][j][i];
      const float* at = in;
      in += POOL_H * WIDTH * n;
#pragma unroll 1
      for (int start = 0; start < CELLS_W; start += STEPS) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
          if (CELLS_W % STEPS != 0 && start + s >= CELLS_W) break;
          const Cell cell = next;
          const bool last = start + s == CELLS_W - 1;
          if (!last) {
#pragma unroll
            for (int c = 0; c < CHANNELS; c++)
#pragma unroll
              for (int j = FIRST; j < FIRST + POOL_W; j++)
                load_column(ring[c][(s * POOL_W + j) % RING], at + (c * HEIGHT * WIDTH + s * POOL_W + j) * n, row,
                            (start + s) * POOL_W + j - PAD_W, n);
          } else if (cell_y + 1 < CELLS_H) {
            load_first(first, in, row + POOL_H, n);
          }
          g_at += n;
          code_at += n;
          if (!last || cell_y + 1 < CELLS_H) load_cell(next, g_at, code_at, OUTPUTS - block * BLOCK, live, n);
#pragma unroll
          for (int o = 0; o < BLOCK; o++) {
            const float one = let_through(cell.g[o], cell.code[o]);
            if (channels == 0) {
              if (MAXIMUM) {
                bias[o] += RELU && cell.code[o] == DEAD ? 0.0f : one;
              } else {
#pragma unroll
                for (int e = 0; e < ENTRIES; e++) bias[o] += entry(one, cell.code[o], e);
              }
            }
            if (ROWS_CHOSEN) {
              add_chosen(sums[o], ring, s, one, cell.code[o]);
              continue;
            }
#pragma unroll
            for (int e = 0; e < ENTRIES; e++) {
              const float grad = entry(one, cell.code[o], e);
#pragma unroll
              for (int c = 0; c < CHANNELS; c++)
#pragma unroll
                for (int t = 0; t < TAPS; t++)
                  sums[o][c * TAPS + t] =
                      fmaf(grad, ring[c][(s * POOL_W + e % POOL_W + t % KERNEL_W) % RING][e / POOL_W + t / KERNEL_W],
                           sums[o][c * TAPS + t]);
            }
          }
        }
        at += STEPS * POOL_W * n;
      }
    }
  }

  // Lanes are added up through shared memory, 32 sums at a time: lane t adds up sum t of all lanes.
  float(*mine)[33] = room[warp];
  float* share = shares + ((size_t)blockIdx.x * gridDim.z + user) * OUTPUTS * (INPUTS * TAPS + 1);
#pragma unroll
  for (int start = 0; start < BLOCK * (KEPT + 1); start += 32) {
#pragma unroll
    for (int t = start; t < start + 32; t++)
      if (t < BLOCK * (KEPT + 1))
        mine[t - start][lane] = t < BLOCK * KEPT ? sums[t / KEPT][t % KEPT] : bias[t - BLOCK * KEPT];
    __syncwarp();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; i++) sum += mine[lane][i];
    __syncwarp();
    const int t = start + lane, o = t < BLOCK * KEPT ? t / KEPT : t - BLOCK * KEPT, out = block * BLOCK + o;
    if (o >= BLOCK || out >= OUTPUTS) continue;
    if (t < BLOCK * KEPT)
      share[(out * INPUTS + first_channel) * TAPS + t % KEPT] = sum;
    else if (channels == 0)
      share[OUTPUTS * INPUTS * TAPS + out] = sum;
  }
}
