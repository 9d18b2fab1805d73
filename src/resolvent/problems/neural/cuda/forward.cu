// Convolution, bias, pooling and ReLU at once. A warp computes a tile of CELLS_Y x CELLS_X pooling cells of BLOCK output
// channels for 32 * IMAGES images; a thread has the tile's sums for its images in registers.
//
// Kernel rows are taken ROWS at a time, with the loop over input channels inside, so that the unrolled body stays small
// enough for the instruction cache.
constexpr int TILE_H = CELLS_Y * POOL_H, TILE_W = CELLS_X * POOL_W;
constexpr int TILES_H = up(CELLS_H, CELLS_Y), TILES_W = up(CELLS_W, CELLS_X), TILES = TILES_H * TILES_W;
constexpr int BLOCKS = up(OUTPUTS, BLOCK);              // of output channels
constexpr int ROW = up(KERNEL_W * BLOCK, 4) * 4;        // weights of one kernel row and input channel
constexpr bool INSIDE_H = PAD_H == 0 && TILES_H * TILE_H + KERNEL_H - 1 <= HEIGHT;
constexpr bool INSIDE_W = PAD_W == 0 && TILES_W * TILE_W + KERNEL_W - 1 <= WIDTH;

typedef float Sums[BLOCK][TILE_H][TILE_W][IMAGES];

// Kernel rows from FIRST to LAST of all input channels. x points at the tile's first input, which may lie outside.
template <int FIRST, int LAST>
__device__ __forceinline__ void add_rows(Sums& sums, const float* x, const float* weights, int row, int column, int n) {
#pragma unroll 1
  for (int c = 0; c < INPUTS; c++) {
    float in[TILE_H + LAST - FIRST - 1][TILE_W + KERNEL_W - 1][IMAGES];
#pragma unroll
    for (int i = 0; i < TILE_H + LAST - FIRST - 1; i++) {
      bool row_inside = INSIDE_H || (unsigned)(row + FIRST + i) < HEIGHT;
#pragma unroll
      for (int j = 0; j < TILE_W + KERNEL_W - 1; j++) {
        if (row_inside && (INSIDE_W || (unsigned)(column + j) < WIDTH)) {
          load(in[i][j], x + ((FIRST + i) * WIDTH + j) * n);
        } else {
#pragma unroll
          for (int v = 0; v < IMAGES; v++) in[i][j][v] = 0.0f;
        }
      }
    }
#pragma unroll
    for (int ky = FIRST; ky < LAST; ky++) {
      float w[ROW];
      broadcast(w, weights + ky * WEIGHT_BLOCKS * ROW);
#pragma unroll
      for (int kx = 0; kx < KERNEL_W; kx++)
#pragma unroll
        for (int o = 0; o < BLOCK; o++)
#pragma unroll
          for (int i = 0; i < TILE_H; i++)
#pragma unroll
            for (int j = 0; j < TILE_W; j++)
#pragma unroll
              for (int v = 0; v < IMAGES; v++)
                sums[o][i][j][v] = fmaf(w[kx * BLOCK + o], in[ky - FIRST + i][j + kx][v], sums[o][i][j][v]);
    }
    x += HEIGHT * WIDTH * n;
    weights += KERNEL_H * WEIGHT_BLOCKS * ROW;
  }
}

template <int FIRST>
__device__ __forceinline__ void add_all(Sums& sums, const float* x, const float* weights, int row, int column, int n) {
  if constexpr (FIRST < KERNEL_H) {
    constexpr int LAST = FIRST + ROWS < KERNEL_H ? FIRST + ROWS : KERNEL_H;
    add_rows<FIRST, LAST>(sums, x, weights, row, column, n);
    add_all<LAST>(sums, x, weights, row, column, n);
  }
}

// The pooled value of one cell and image, and its code.
__device__ __forceinline__ float pooled(const Sums& sums, int o, int i, int j, int v, int& code) {
  float value = sums[o][i * POOL_H][j * POOL_W][v];
  code = 0;
  if (MAXIMUM) {
#pragma unroll
    for (int e = 1; e < ENTRIES; e++) {
      float other = sums[o][i * POOL_H + e / POOL_W][j * POOL_W + e % POOL_W][v];
      if (other > value) code = e;
      value = larger(value, other);
    }
  } else if (MEAN) {
    value = 0.0f;
#pragma unroll
    for (int e = 0; e < ENTRIES; e++) {
      float one = sums[o][i * POOL_H + e / POOL_W][j * POOL_W + e % POOL_W][v];
      if (RELU && RELU_FIRST) {
        if (one > 0.0f) code |= 1 << e;
        one = larger(one, 0.0f);
      }
      value += one;
    }
    value *= SHARE;
  }
  if (RELU && !RELU_FIRST) {
    if (MAXIMUM) {
      if (value <= 0.0f) code = DEAD;
    } else {
      code = value > 0.0f;
    }
    value = larger(value, 0.0f);
  }
  return value;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
forward(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
        float* __restrict__ y, byte* __restrict__ codes, int given, int code_stride) {
  const int n = COUNT ? COUNT : given;
  __shared__ __align__(16) float weights[INPUTS * KERNEL_H * WEIGHT_BLOCKS * ROW];
  __shared__ float biases[WEIGHT_BLOCKS * BLOCK];
  const int user = blockIdx.z / PARTS, part = blockIdx.z % PARTS;
  const int first_block = part * WEIGHT_BLOCKS;
  weight += (size_t)user * OUTPUTS * INPUTS * TAPS;
  for (int i = threadIdx.x; i < INPUTS * KERNEL_H * WEIGHT_BLOCKS * KERNEL_W * BLOCK; i += 32 * WARPS) {
    int o = i % BLOCK, kx = i / BLOCK % KERNEL_W, b = i / (BLOCK * KERNEL_W) % WEIGHT_BLOCKS;
    int row = i / (BLOCK * KERNEL_W * WEIGHT_BLOCKS), c = row / KERNEL_H, ky = row % KERNEL_H;
    int out = (first_block + b) * BLOCK + o;
    weights[(row * WEIGHT_BLOCKS + b) * ROW + kx * BLOCK + o] =
        out < OUTPUTS ? weight[(out * INPUTS + c) * TAPS + ky * KERNEL_W + kx] : 0.0f;
  }
  for (int i = threadIdx.x; i < WEIGHT_BLOCKS * BLOCK; i += 32 * WARPS) {
    int out = first_block * BLOCK + i;
    biases[i] = BIAS && out < OUTPUTS ? bias[user * OUTPUTS + out] : 0.0f;
  }
  __syncthreads();

  const int image = first_image(blockIdx.x, n);
  const bool live = IMAGES == 2 || (int)(blockIdx.x * 32 + threadIdx.x % 32) < n;
  x += (size_t)user * INPUTS * HEIGHT * WIDTH * n + image;
  y += (size_t)user * OUTPUTS * CELLS * n + image;
  codes += (size_t)user * code_stride * 4 + image;
#pragma unroll 1
  for (int item = blockIdx.y * WARPS + threadIdx.x / 32; item < TILES * WEIGHT_BLOCKS; item += gridDim.y * WARPS) {
    int b = item % WEIGHT_BLOCKS, tile = item / WEIGHT_BLOCKS, block = first_block + b;
    if (block >= BLOCKS) continue;
    int tile_y = tile / TILES_W, tile_x = tile % TILES_W;
    int row = tile_y * TILE_H - PAD_H, column = tile_x * TILE_W - PAD_W;
    Sums sums;
#pragma unroll
    for (int o = 0; o < BLOCK; o++)
#pragma unroll
      for (int i = 0; i < TILE_H; i++)
#pragma unroll
        for (int j = 0; j < TILE_W; j++)
#pragma unroll
          for (int v = 0; v < IMAGES; v++) sums[o][i][j][v] = biases[b * BLOCK + o];
    add_all<0>(sums, x + (row * WIDTH + column) * n, weights + b * ROW, row, column, n);
    if (IMAGES == 1 && !live) continue;
#pragma unroll
    for (int o = 0; o < BLOCK; o++) {
      if (OUTPUTS % BLOCK != 0 && block * BLOCK + o >= OUTPUTS) break;
#pragma unroll
      for (int i = 0; i < CELLS_Y; i++) {
        int cell_y = tile_y * CELLS_Y + i;
        if (CELLS_H % CELLS_Y != 0 && cell_y >= CELLS_H) break;
#pragma unroll
        for (int j = 0; j < CELLS_X; j++) {
          int cell_x = tile_x * CELLS_X + j;
          if (CELLS_W % CELLS_X != 0 && cell_x >= CELLS_W) break;
          float value[IMAGES];
          int code[IMAGES];
#pragma unroll
          for (int v = 0; v < IMAGES; v++) value[v] = pooled(sums, o, i, j, v, code[v]);
          int at = ((block * BLOCK + o) * CELLS + cell_y * CELLS_W + cell_x) * n;
          store(y + at, value);
          if (CODED) store(codes + at, code);
        }
      }
    }
  }
}
