"""Generated CUDA kernels: a convolution with its bias, pooling and ReLU at once, over stacked users, in float32."""
