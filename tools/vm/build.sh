#!/usr/bin/env bash
# tools/vm/build.sh: makes the guest's kernel, modules and initial file system from Debian's packages, once, and
# prints the folder that has them. Nothing is installed; about a minute and 230 MB of downloads.
# A finished build is kept in .cache/vm/KERNEL-HASH, HASH being that of the scripts that made it, and is used until
# they change: a newer kernel package alone is no reason to fetch it (RRPC_VM_KERNEL=VERSION asks for another).
source "$(dirname "$0")/../lib.sh"
export PATH="$PATH:/usr/sbin:/sbin"
cache="${RRPC_VM_CACHE:-$PWD/.cache/vm}"
hash="$(cat tools/vm/{build.sh,init,siw.patch} | sha256sum | cut -c1-12)"
# What the guest boots with, and what it may load later (with whatever they depend on).
boot_modules=(virtio_pci virtio_console 9p 9pnet_virtio overlay)
more_modules=(ib_uverbs rdma_ucm rdma_rxe dummy veth virtio_net sch_netem sch_prio sch_ingress cls_u32 act_gact bridge)
# rxe and siw ask the crypto layer for these by their algorithms' names.
more_modules+=(crc32_generic crc32_pclmul crc32c_generic crc32c_intel)

fail() { echo "vm: $*" >&2; exit 1; }

finished() {
  local build
  for build in "$cache"/${RRPC_VM_KERNEL:-*}-"$hash"; do
    if [ -e "$build/kernel-version" ]; then echo "$build"; fi
  done | tail -n 1
}

newest_kernel() { apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: linux-image-//p' | head -n 1; }

# Root's downloads go to a folder that apt's own user can't write to: without this option apt warns of it.
fetch() { apt-get -q -o APT::Sandbox::User=root download "$@"; }

decompress() { case "$1" in *.xz) xz -dc "$1" ;; *.zst) zstd -dcq "$1" ;; *) cat "$1" ;; esac; }

fetch_image() {
  fetch "linux-image-$kernel" && dpkg -x "linux-image-${kernel}"_*.deb image || fail "can't fetch linux-image-$kernel"
  # From Debian 13 on everything is below /usr.
  modules=image/lib/modules
  [ -d "$modules" ] || modules=image/usr/lib/modules
}

# Debian leaves Soft-iWARP out of its kernels: built here from their source, against their headers.
build_siw() {
  local series headers compiler
  find "$modules/$kernel" -name 'siw.ko*' | grep -q . && return
  series="$(sed -E 's/^([0-9]+\.[0-9]+).*/\1/' <<<"$kernel")"
  headers="linux-headers-$kernel"
  fetch "$headers" "linux-headers-${kernel%-amd64}-common" "linux-source-$series" || fail "can't fetch the kernel's source"
  fetch "$(dpkg-deb -f "$headers"_*.deb Depends | grep -o 'linux-kbuild-[^ ,]*')" || fail "can't fetch linux-kbuild"
  for package in linux-headers-*.deb linux-kbuild-*.deb; do dpkg -x "$package" headers; done
  dpkg -x "linux-source-${series}"_*.deb source
  tar -xJf "source/usr/src/linux-source-$series.tar.xz" -C source --strip-components=1 "linux-source-$series/drivers/infiniband/sw/siw"
  # A kernel that has the repair, or other source, is used as it is.
  patch -d source -p1 -N --dry-run <"$scripts/siw.patch" >/dev/null && patch -d source -p1 -s <"$scripts/siw.patch" ||
    echo "vm: siw.patch doesn't fit this kernel's siw, which is built as it is"
  # Debian's makefiles name each other where they'd be installed.
  sed -i "s#\(^\|[ =]\)/usr/src/#\1$PWD/headers/usr/src/#" "headers/usr/src/$headers/Makefile"
  compiler="$(grep -oE 'gcc-[0-9]+' "headers/usr/src/$headers/.kernelvariables" | head -n 1)"
  command -v "$compiler" >/dev/null || apt_install "$compiler" || fail "the kernel's compiler is needed: apt-get install $compiler"
  sed -i 's/^obj-.*/obj-m += siw.o/' source/drivers/infiniband/sw/siw/Makefile
  make -s -C "headers/usr/src/$headers" M="$PWD/source/drivers/infiniband/sw/siw" modules -j"$JOBS" || fail "siw doesn't build"
  strip -g source/drivers/infiniband/sw/siw/siw.ko
  install -D source/drivers/infiniband/sw/siw/siw.ko "$modules/$kernel/extra/siw.ko"
}

depends_of() {  # depends_of MODULE...: their files, each after those that it needs
  local module
  for module in "$@"; do
    modprobe -d "${modules%/lib/modules}" -S "$kernel" --show-depends "$module" || fail "the kernel has no module $module"
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

# The few modules of use, out of 400 MB.
collect_modules() {
  local to="result/modules/lib/modules/$kernel" file
  depmod -b "${modules%/lib/modules}" "$kernel"
  mkdir -p "$to"
  cp "$modules/$kernel"/modules.{order,builtin,builtin.modinfo} "$to"
  depends_of "${boot_modules[@]}" "${more_modules[@]}" siw | while read -r file; do cp "$file" "$to/"; done
  depmod -b result/modules "$kernel"
}

make_initrd() {
  local file name
  mkdir -p initrd/{bin,modules,lower,rw,new,proc,sys,dev}
  cp "$(command -v busybox)" initrd/bin/busybox
  install -m 755 "$scripts/init" initrd/init
  depends_of "${boot_modules[@]}" | while read -r file; do
    name="$(basename "$file" | sed -E 's/\.(xz|zst)$//')"
    decompress "$file" >"initrd/modules/$name"
    echo "$name" >>initrd/modules/order
  done
  (cd initrd && find . | cpio -o -H newc --quiet | gzip -1) >result/initrd.gz
}

# An uncompressed kernel starts at once (PVH); under emulation decompression takes seconds. Where the kernel isn't
# packed with xz, the packed one does too.
unpack_kernel() {
  python3 - "image/boot/vmlinuz-$kernel" result/vmlinux <<'P'
import lzma, struct, sys
image = open(sys.argv[1], "rb").read()
offset, length = struct.unpack_from("<II", image, 0x248)  # payload_offset, payload_length (Documentation/x86/boot)
setup_sectors = image[0x1F1] or 4
payload = image[(setup_sectors + 1) * 512 + offset :][:length]
kernel = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(payload) if payload[:4] == b"\xfd7zX" else image
open(sys.argv[2], "wb").write(kernel)
P
}

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
found="$(finished)"
if [ -z "$found" ]; then
  scripts="$PWD/tools/vm"
  kernel="${RRPC_VM_KERNEL:-$(newest_kernel)}"
  if [ -z "$kernel" ]; then
    command -v apt-get >/dev/null || fail "the guest's kernel comes from Debian's packages, and there is no apt-get here"
    apt_update >&2 || fail "apt-get update failed: the guest's kernel can't be fetched"
    kernel="$(newest_kernel)"
    [ -n "$kernel" ] || fail "apt knows no linux-image-amd64: the guest's kernel comes from Debian's packages"
  fi
  work="$(mktemp -d "$cache/building.XXXXXX")"
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  mkdir result
  { fetch_image; build_siw; collect_modules; make_initrd; unpack_kernel; } >&2
  echo "$kernel" >result/kernel-version
  found="$cache/$kernel-$hash"
  rm -rf "$found"
  mv -T result "$found"
  if [ -z "${RRPC_VM_CACHE:-}" ]; then
    for old in "$cache"/*-????????????; do [ "$old" = "$found" ] || rm -rf "$old"; done
  fi
fi
echo "$found"
