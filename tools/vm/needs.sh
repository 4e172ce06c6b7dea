#!/usr/bin/env bash
# tools/vm/needs.sh: prints the Debian packages that the virtual machine needs and that are not here, one a line.
export PATH="$PATH:/usr/sbin:/sbin"
lacks() { command -v "$1" >/dev/null || echo "$2"; }

lacks qemu-system-x86_64 qemu-system-x86
# It is the guest's first process, before there is any library.
{ command -v busybox >/dev/null && ! ldd "$(command -v busybox)" >/dev/null 2>&1; } || echo busybox-static
lacks modprobe kmod
lacks cpio cpio
lacks make make
lacks patch patch
lacks xz xz-utils
lacks strip binutils
lacks flock util-linux
# These run in the guest, which sees the host's files.
[ -d /etc/libibverbs.d ] || echo ibverbs-providers
lacks rdma iproute2
lacks rping rdmacm-utils
lacks ibv_devinfo ibverbs-utils
lacks ib_send_lat perftest
