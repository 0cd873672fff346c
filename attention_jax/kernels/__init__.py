"""Kernels of accelerators: splash attention on TPUs, cuDNN on GPUs, and what each can do.

`refusal` knows why a kernel cannot honour a request. None answers with a part of it dropped.
Nothing here is needed on a CPU, and the kernels' own modules are imported when first called.
"""

from attention_jax.kernels.blocks import block_size as block_size
from attention_jax.kernels.capability import CAPABILITIES as CAPABILITIES
from attention_jax.kernels.capability import Capability as Capability
from attention_jax.kernels.capability import Implementation as Implementation
from attention_jax.kernels.capability import Refusal as Refusal
from attention_jax.kernels.capability import capabilities as capabilities
from attention_jax.kernels.capability import check as check
from attention_jax.kernels.capability import refusal as refusal
from attention_jax.kernels.cudnn import cudnn_attention as cudnn_attention
from attention_jax.kernels.splash import splash_attention as splash_attention
from attention_jax.kernels.target import one_device as one_device
from attention_jax.kernels.target import platform as platform
