// Shared by all kernels of a convolution. The constants above were written by source.py from the layer's shapes.
//
// Values are (users, channels, height, width, n): images lie innermost, so a lane is an image, and every load of a warp
// is one run of images. Lanes share weights, which are read from shared memory.
//
// A pooling cell is a tile of POOL_H x POOL_W outputs of the convolution. Forward leaves one byte per cell, from which
// backward rebuilds the gradient at each entry: the place of the maximum (DEAD where ReLU cut it off), a bit per entry
// that ReLU let through before a mean, or whether ReLU let the cell through.
typedef unsigned char byte;

constexpr int OUT_H = HEIGHT + 2 * PAD_H - KERNEL_H + 1, OUT_W = WIDTH + 2 * PAD_W - KERNEL_W + 1;
constexpr int CELLS_H = OUT_H / POOL_H, CELLS_W = OUT_W / POOL_W, CELLS = CELLS_H * CELLS_W;
constexpr int ENTRIES = POOL_H * POOL_W, TAPS = KERNEL_H * KERNEL_W, DEAD = 255;
constexpr bool MAXIMUM = POOLING == 1, MEAN = POOLING == 2;
constexpr bool CODED = MAXIMUM || RELU;
constexpr float SHARE = MEAN ? 1.0f / ENTRIES : 1.0f;

__device__ __forceinline__ constexpr int up(int a, int b) { return (a + b - 1) / b; }
__device__ __forceinline__ constexpr int down(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// The maximum, and NaN where one of them is.
__device__ __forceinline__ float larger(float a, float b) {
#ifdef EMULATED
  return a != a || a > b ? a : b;
#else
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#endif
}

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

// The IMAGES images of a lane: neighbours where n is even, else a warp apart.
constexpr int APART = PAIRED ? 1 : 32;

__device__ __forceinline__ int first_image(int group, int n) {
  int lane = threadIdx.x % 32;
  if (IMAGES == 1) return min(group * 32 + lane, n - 1);
  return min(group * 64, n - 64) + (PAIRED ? 2 * lane : lane);  // the last group goes over some images again
}

__device__ __forceinline__ void load(float (&to)[IMAGES], const float* from) {
  if (IMAGES == 2 && PAIRED) {
    float2 both = __ldg((const float2*)from);
    to[0] = both.x, to[IMAGES - 1] = both.y;
  } else {
    for (int v = 0; v < IMAGES; v++) to[v] = __ldg(from + v * APART);
  }
}

__device__ __forceinline__ void load(int (&to)[IMAGES], const byte* from) {
  if (IMAGES == 2 && PAIRED) {
    int both = __ldg((const unsigned short*)from);
    to[0] = both & 255, to[IMAGES - 1] = both >> 8;
  } else {
    for (int v = 0; v < IMAGES; v++) to[v] = __ldg(from + v * APART);
  }
}

__device__ __forceinline__ void store(float* to, const float (&from)[IMAGES]) {
  if (IMAGES == 2 && PAIRED) {
    *(float2*)to = make_float2(from[0], from[IMAGES - 1]);
  } else {
    for (int v = 0; v < IMAGES; v++) to[v * APART] = from[v];
  }
}

__device__ __forceinline__ void store(byte* to, const int (&from)[IMAGES]) {
  if (IMAGES == 2 && PAIRED) {
    *(unsigned short*)to = (unsigned short)(from[0] | from[IMAGES - 1] << 8);
  } else {
    for (int v = 0; v < IMAGES; v++) to[v * APART] = (byte)from[v];
  }
}

// SIZE weights from shared memory, four at a time.
template <int SIZE>
__device__ __forceinline__ void broadcast(float (&to)[SIZE], const float* from) {
#pragma unroll
  for (int i = 0; i < SIZE; i += 4) {
    float4 four = *(const float4*)(from + i);
    to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
  }
}
