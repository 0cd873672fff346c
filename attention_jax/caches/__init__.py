"""Caches as explicit pytrees: what a layer keeps of the tokens that later ones attend.

A cache is passed in and returned. The modules' `init_cache`, `extend` and `cross_cache` are thin
calls of `empty`, `extend` and `project`.
"""

from attention_jax.caches.cache import Cache as Cache
from attention_jax.caches.cache import empty as empty
from attention_jax.caches.cache import keeps_of as keeps_of
from attention_jax.caches.cross import CrossCache as CrossCache
from attention_jax.caches.cross import attend as attend
from attention_jax.caches.cross import project as project
from attention_jax.caches.extend import extend as extend
