// The end of a net at once: a linear layer of WIDTH outputs, where DEEP a ReLU and a second linear layer, then the
// softmax and the cross entropy, and back to the gradient at the input.
//
// A block of threads has 32 * IMAGES images of one user. In the first layer its warps share the input features: each
// leaves sums for all images, which are added up in order. The gradient at the input is shared out in the same way.
constexpr int ROOM = 32 * IMAGES;
constexpr int ROW = up(WIDTH, 4) * 4;  // weights of one input feature
constexpr int HIDDEN = DEEP ? WIDTH : 1;

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT)
head(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
     const float* __restrict__ last_weight, const float* __restrict__ last_bias, const long long* __restrict__ labels,
     const float* __restrict__ share, float* __restrict__ hidden, float* __restrict__ g_hidden,
     float* __restrict__ g_out, float* __restrict__ loss, float* __restrict__ dx, int given) {
  const int n = COUNT ? COUNT : given;
  __shared__ __align__(16) float weights[INPUTS * ROW];
  __shared__ float sums[WARPS][WIDTH][ROOM], last[CLASSES * HIDDEN], biases[WIDTH], last_biases[CLASSES];
  const int user = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 8
  for (int i = threadIdx.x; i < WIDTH * INPUTS; i += 32 * WARPS)
    weights[i % INPUTS * ROW + i / INPUTS] = weight[(size_t)user * WIDTH * INPUTS + i];
  for (int i = threadIdx.x; i < WIDTH; i += 32 * WARPS) biases[i] = BIAS ? bias[user * WIDTH + i] : 0.0f;
  if (DEEP) {
    for (int i = threadIdx.x; i < CLASSES * HIDDEN; i += 32 * WARPS) last[i] = last_weight[user * CLASSES * HIDDEN + i];
    for (int i = threadIdx.x; i < CLASSES; i += 32 * WARPS)
      last_biases[i] = LAST_BIAS ? last_bias[user * CLASSES + i] : 0.0f;
  }
  const int image = first_image(blockIdx.x, n);
  const bool live = IMAGES == 2 || (int)(blockIdx.x * 32 + lane) < n;
  x += (size_t)user * INPUTS * n + image;
  __syncthreads();

  {
    float sum[WIDTH][IMAGES];
#pragma unroll
    for (int o = 0; o < WIDTH; o++)
#pragma unroll
      for (int v = 0; v < IMAGES; v++) sum[o][v] = 0.0f;
#pragma unroll 1
    for (int first = warp * AHEAD; first < INPUTS; first += WARPS * AHEAD) {
      float in[AHEAD][IMAGES];
#pragma unroll
      for (int k = 0; k < AHEAD; k++)
        if (INPUTS % AHEAD == 0 || first + k < INPUTS) load(in[k], x + (first + k) * n);
#pragma unroll
      for (int k = 0; k < AHEAD; k++) {
        if (INPUTS % AHEAD != 0 && first + k >= INPUTS) break;
        float w[ROW];
        broadcast(w, weights + (first + k) * ROW);
#pragma unroll
        for (int o = 0; o < WIDTH; o++)
#pragma unroll
          for (int v = 0; v < IMAGES; v++) sum[o][v] = fmaf(w[o], in[k][v], sum[o][v]);
      }
    }
#pragma unroll
    for (int o = 0; o < WIDTH; o++)
#pragma unroll
      for (int v = 0; v < IMAGES; v++) sums[warp][o][v * 32 + lane] = sum[o][v];
  }
  __syncthreads();

  if (threadIdx.x < ROOM) {  // from here to the gradient at the first layer's result a thread has one image
    const int at = image + warp * APART;
    float h[WIDTH], z[CLASSES];
#pragma unroll
    for (int o = 0; o < WIDTH; o++) {
      h[o] = sums[0][o][threadIdx.x];
#pragma unroll
      for (int k = 1; k < WARPS; k++) h[o] += sums[k][o][threadIdx.x];
      h[o] += biases[o];
      if (DEEP) {
        h[o] = larger(h[o], 0.0f);
        if (live) hidden[((size_t)user * WIDTH + o) * n + at] = h[o];
      }
    }
#pragma unroll
    for (int c = 0; c < CLASSES; c++) {
      z[c] = DEEP ? 0.0f : h[c % WIDTH];
      if (DEEP) {
#pragma unroll
        for (int o = 0; o < WIDTH; o++) z[c] = fmaf(last[c * HIDDEN + o % HIDDEN], h[o], z[c]);
        z[c] += last_biases[c];
      }
    }
    float most = z[0], total = 0.0f;
#pragma unroll
    for (int c = 1; c < CLASSES; c++) most = larger(most, z[c]);
#pragma unroll
    for (int c = 0; c < CLASSES; c++) total += expf(z[c] - most);
    const float log_sum = logf(total), part = share[(size_t)user * n + at];
    const long long label = labels[(size_t)user * n + at];
    float right = label < 0 ? 0.0f : sqrtf(-1.0f);  // ignored, with a share of 0; a label without an output is not a number
#pragma unroll
    for (int c = 0; c < CLASSES; c++) {
      const float log = z[c] - most - log_sum;
      if (c == label) right = log;
      z[c] = expf(log) * part - (c == label ? part : 0.0f);  // the gradient at the output
      if (live) g_out[((size_t)user * CLASSES + c) * n + at] = z[c];
    }
    if (live) loss[(size_t)user * n + at] = part > 0.0f ? -right * part : 0.0f;
#pragma unroll
    for (int o = 0; o < WIDTH; o++) {
      float g = DEEP ? 0.0f : z[o % CLASSES];
      if (DEEP) {
#pragma unroll
        for (int c = 0; c < CLASSES; c++) g = fmaf(last[c * HIDDEN + o % HIDDEN], z[c], g);
        if (h[o] <= 0.0f) g = 0.0f;
        if (live) g_hidden[((size_t)user * WIDTH + o) * n + at] = g;
      }
      sums[0][o][threadIdx.x] = g;
    }
  }
  if (!TO_INPUT) return;
  __syncthreads();

  float g[WIDTH][IMAGES];
#pragma unroll
  for (int o = 0; o < WIDTH; o++)
#pragma unroll
    for (int v = 0; v < IMAGES; v++) g[o][v] = sums[0][o][v * 32 + lane];
  dx += (size_t)user * INPUTS * n + image;
#pragma unroll 2
  for (int i = warp; i < INPUTS; i += WARPS) {
    float w[ROW], sum[IMAGES];
    broadcast(w, weights + i * ROW);
#pragma unroll
    for (int v = 0; v < IMAGES; v++) sum[v] = 0.0f;
#pragma unroll
    for (int o = 0; o < WIDTH; o++)
#pragma unroll
      for (int v = 0; v < IMAGES; v++) sum[v] = fmaf(w[o], g[o][v], sum[v]);
    if (live) store(dx + (size_t)i * n, sum);
  }
}
