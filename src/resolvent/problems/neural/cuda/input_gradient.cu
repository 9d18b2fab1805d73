// The gradient at the input. A warp computes a tile of CELLS_Y x CELLS_X cells (of input positions now) of BLOCK input
// channels for 32 * IMAGES images, and goes along a whole row of tiles.
//
// Position p of the input takes part in the outputs p + pad - k, k < kernel. A tile therefore looks at a patch of cells,
// row of cells by row of cells (STRIP), with the loop over output channels inside. Cells outside the image count as 0:
// rows of them are skipped, and columns are left out where tiles at the left and right edge are compiled apart.
constexpr int TILE_H = CELLS_Y * POOL_H, TILE_W = CELLS_X * POOL_W;
constexpr int TILES_H = up(HEIGHT, TILE_H), TILES_W = up(WIDTH, TILE_W);
constexpr int BLOCKS = up(INPUTS, BLOCK);               // of input channels
constexpr int ROW = up(KERNEL_W * BLOCK, 4) * 4;
constexpr int PATCH_H = TILE_H + KERNEL_H - 1, PATCH_W = TILE_W + KERNEL_W - 1;
constexpr int SHIFT_H = PAD_H - KERNEL_H + 1, SHIFT_W = PAD_W - KERNEL_W + 1;  // from a tile to its patch
constexpr int BEFORE_H = down(SHIFT_H, POOL_H), BEFORE_W = down(SHIFT_W, POOL_W);  // the same, in whole cells
constexpr int OFF_H = SHIFT_H - BEFORE_H * POOL_H, OFF_W = SHIFT_W - BEFORE_W * POOL_W;  // and what is left
constexpr int PATCH_CELLS_H = up(OFF_H + PATCH_H, POOL_H), PATCH_CELLS_W = up(OFF_W + PATCH_W, POOL_W);

typedef float Sums[BLOCK][TILE_H][TILE_W][IMAGES];

// Columns of cells from LEFT to RIGHT of the patch, for a row of cells; EDGE: some of them may still be outside.
template <int STRIP, int LEFT, int RIGHT, bool EDGE>
__device__ __forceinline__ void add_strip(Sums& sums, const float* g, const byte* codes, const float* weights,
                                          int cell_x, int n) {
#pragma unroll 1
  for (int o = 0; o < OUTPUTS; o++) {
    float grad[POOL_H][PATCH_CELLS_W * POOL_W][IMAGES];
#pragma unroll
    for (int j = LEFT; j < RIGHT; j++) {
      float one[IMAGES];
      int code[IMAGES];
      bool inside = !EDGE || (unsigned)(cell_x + j) < CELLS_W;
#pragma unroll
      for (int v = 0; v < IMAGES; v++) one[v] = 0.0f, code[v] = 0;
      if (inside) {
        load(one, g + j * n);
        if (CODED) load(code, codes + j * n);
      }
#pragma unroll
      for (int v = 0; v < IMAGES; v++) {
        float left = let_through(one[v], code[v]);
#pragma unroll
        for (int e = 0; e < ENTRIES; e++) grad[e / POOL_W][j * POOL_W + e % POOL_W][v] = entry(left, code[v], e);
      }
    }
#pragma unroll
    for (int ky = 0; ky < KERNEL_H; ky++) {
      constexpr int FIRST = STRIP * POOL_H - OFF_H - (KERNEL_H - 1);  // of the tile's rows that this strip's row 0 meets
      if (FIRST + ky + POOL_H <= 0 || FIRST + ky >= TILE_H) continue;
      float w[ROW];
      broadcast(w, weights + ky * WEIGHT_BLOCKS * ROW);
#pragma unroll
      for (int e = 0; e < POOL_H; e++) {
        const int i = FIRST + ky + e;
        if (i < 0 || i >= TILE_H) continue;
#pragma unroll
        for (int kx = 0; kx < KERNEL_W; kx++)
#pragma unroll
          for (int j = 0; j < TILE_W; j++) {
            const int at = OFF_W + KERNEL_W - 1 - kx + j;
            if (at < LEFT * POOL_W || at >= RIGHT * POOL_W) continue;
#pragma unroll
            for (int c = 0; c < BLOCK; c++)
#pragma unroll
              for (int v = 0; v < IMAGES; v++)
                sums[c][i][j][v] = fmaf(w[kx * BLOCK + c], grad[e][at][v], sums[c][i][j][v]);
          }
      }
    }
    g += CELLS * n;
    codes += CELLS * n;
    weights += KERNEL_H * WEIGHT_BLOCKS * ROW;
  }
}

template <int STRIP, int LEFT, int RIGHT, bool EDGE>
__device__ __forceinline__ void add_strips(Sums& sums, const float* g, const byte* codes, const float* weights,
                                           int cell_y, int cell_x, int n) {
  if constexpr (STRIP < PATCH_CELLS_H) {
    if ((unsigned)(cell_y + STRIP) < CELLS_H) {
      int at = ((cell_y + STRIP) * CELLS_W + cell_x) * n;
      add_strip<STRIP, LEFT, RIGHT, EDGE>(sums, g + at, codes + at, weights, cell_x, n);
    }
    add_strips<STRIP + 1, LEFT, RIGHT, EDGE>(sums, g, codes, weights, cell_y, cell_x, n);
  }
}

template <int LEFT, int RIGHT, bool EDGE>
__device__ __forceinline__ void tile(float* dx, const float* g, const byte* codes, const float* weights, int block,
                                     int tile_y, int tile_x, int n, bool live) {
  Sums sums;
#pragma unroll
  for (int c = 0; c < BLOCK; c++)
#pragma unroll
    for (int i = 0; i < TILE_H; i++)
#pragma unroll
      for (int j = 0; j < TILE_W; j++)
#pragma unroll
        for (int v = 0; v < IMAGES; v++) sums[c][i][j][v] = 0.0f;
  add_strips<0, LEFT, RIGHT, EDGE>(sums, g, codes, weights, tile_y * CELLS_Y + BEFORE_H, tile_x * CELLS_X + BEFORE_W,
                                   n);
  if (IMAGES == 1 && !live) return;
#pragma unroll
  for (int c = 0; c < BLOCK; c++) {
    if (INPUTS % BLOCK != 0 && block * BLOCK + c >= INPUTS) break;
#pragma unroll
    for (int i = 0; i < TILE_H; i++) {
      int y = tile_y * TILE_H + i;
      if (HEIGHT % TILE_H != 0 && y >= HEIGHT) break;
#pragma unroll
      for (int j = 0; j < TILE_W; j++) {
        int x = tile_x * TILE_W + j;
        if (WIDTH % TILE_W != 0 && x >= WIDTH) break;
        store(dx + (((block * BLOCK + c) * HEIGHT + y) * WIDTH + x) * n, sums[c][i][j]);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
input_gradient(const float* __restrict__ g, const byte* __restrict__ codes, const float* __restrict__ weight,
               float* __restrict__ dx, int given, int code_stride) {
  const int n = COUNT ? COUNT : given;
  __shared__ __align__(16) float weights[OUTPUTS * KERNEL_H * WEIGHT_BLOCKS * ROW];
  const int user = blockIdx.z / PARTS, first_block = blockIdx.z % PARTS * WEIGHT_BLOCKS;
  weight += (size_t)user * OUTPUTS * INPUTS * TAPS;
  for (int i = threadIdx.x; i < OUTPUTS * KERNEL_H * WEIGHT_BLOCKS * KERNEL_W * BLOCK; i += 32 * WARPS) {
    int c = i % BLOCK, kx = i / BLOCK % KERNEL_W, b = i / (BLOCK * KERNEL_W) % WEIGHT_BLOCKS;
    int row = i / (BLOCK * KERNEL_W * WEIGHT_BLOCKS), o = row / KERNEL_H, ky = row % KERNEL_H;
    int in = (first_block + b) * BLOCK + c;
    weights[(row * WEIGHT_BLOCKS + b) * ROW + kx * BLOCK + c] =
        in < INPUTS ? weight[(o * INPUTS + in) * TAPS + ky * KERNEL_W + kx] : 0.0f;
  }
  __syncthreads();

  const int image = first_image(blockIdx.x, n);
  const bool live = IMAGES == 2 || (int)(blockIdx.x * 32 + threadIdx.x % 32) < n;
  g += (size_t)user * OUTPUTS * CELLS * n + image;
  codes += (size_t)user * code_stride * 4 + image;
  dx += (size_t)user * INPUTS * HEIGHT * WIDTH * n + image;
#pragma unroll 1
  for (int item = blockIdx.y * WARPS + threadIdx.x / 32; item < TILES_H * WEIGHT_BLOCKS; item += gridDim.y * WARPS) {
    int b = item % WEIGHT_BLOCKS, tile_y = item / WEIGHT_BLOCKS, block = first_block + b;
    if (block >= BLOCKS) continue;
#pragma unroll 1
    for (int tile_x = 0; tile_x < TILES_W; tile_x++) {
      const float* w = weights + b * ROW;
      TILE_BY_COLUMN
    }
  }
}
