// The sums that the shares of the images have left, added up in order: into the gradient of kernels and of biases.
// What is done with each: 0 nothing, since nobody wants it; 1 written; 2 added to what is there.
extern "C" __global__ void __launch_bounds__(128)
add_shares(const float* __restrict__ shares, float* weight, float* bias, int count, int to_weight, int to_bias) {
  constexpr int KERNELS = OUTPUTS * INPUTS * TAPS, SIZE = KERNELS + OUTPUTS;
  const int i = blockIdx.x * 128 + threadIdx.x, user = blockIdx.y;
  if (i >= SIZE) return;
  const int action = i < KERNELS ? to_weight : to_bias;
  if (action == 0) return;
  float sum = 0.0f;
  for (int s = 0; s < count; s++) sum += shares[((size_t)s * gridDim.y + user) * SIZE + i];
  float* out = i < KERNELS ? weight + (size_t)user * KERNELS + i : bias + (size_t)user * OUTPUTS + i - KERNELS;
  *out = action == 2 ? *out + sum : sum;
}
