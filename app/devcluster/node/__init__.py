"""A real node on this machine, with kubelet, containerd and fake GPUs, and its control plane.

The node has its own mount, network and PID namespaces. When their first process ends, the kernel
ends every other process in them and removes their mounts, network devices and nft tables.
"""
