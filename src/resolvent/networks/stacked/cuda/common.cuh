// Shared by all kernels of a convolution. The constants above were written by source.py from the layer's shapes.
//
// Values are (users, channels, height, width, n). Lanes share weights, which are read from shared memory.
//
// A pooling cell is a tile of POOL_H x POOL_W outputs of the convolution. Forward leaves one byte per cell, from which
// backward rebuilds the gradient at each entry: the place of the maximum (DEAD where ReLU cut it off), a bit per entry
// that ReLU let through before a mean, or whether ReLU let the cell through.
constexpr int OUT_H = HEIGHT + 2 * PAD_H - KERNEL_H + 1, OUT_W = WIDTH + 2 * PAD_W - KERNEL_W + 1;
constexpr int CELLS_H = OUT_H / POOL_H, CELLS_W = OUT_W / POOL_W, CELLS = CELLS_H * CELLS_W;
constexpr int ENTRIES = POOL_H * POOL_W, TAPS = KERNEL_H * KERNEL_W, DEAD = 255;
constexpr bool MAXIMUM = POOLING == 1, MEAN = POOLING == 2;
constexpr bool CODED = MAXIMUM || RELU;
constexpr float SHARE = MEAN ? 1.0f / ENTRIES : 1.0f;

__device__ __forceinline__ constexpr int down(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// What a cell's code says about the gradient g at its pooled value: what is left of it for every entry ...
__device__ __forceinline__ float let_through(float g, int code) {
  if (MEAN) g *= SHARE;
  return RELU && !MAXIMUM && !RELU_FIRST && code == 0 ? 0.0f : g;
}

// ... and for entry e alone.
__device__ __forceinline__ float entry(float g, int code, int e) {
  if (MAXIMUM) return code == e ? g : 0.0f;
  if (RELU && RELU_FIRST) return (code >> e) & 1 ? g : 0.0f;
  return g;
}
