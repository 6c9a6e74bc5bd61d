#!/bin/bash
# Build the kernel and the root file system of a small guest with Linux's siw: $1/vmlinuz and $1/initrd.gz.
# With a second word, `fetch`, only download what that needs.
#
# Debian's kernels leave siw out, so the module is compiled from the package linux-source-6.1 with the headers of the
# same version. Nothing is installed on this host: packages are downloaded and unpacked below $1. The guest has
# busybox, ip, rdma and the programs of rdmacm-utils and perftest as they are installed here, and runs guest.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"

if ! ls unpacked/boot/vmlinuz-* > /dev/null 2>&1; then
    image=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-6[^ ]*\).*/\1/p' | head -1)
    headers=${image/image/headers}
    common=${headers%-amd64}-common
    mkdir -p packages
    (cd packages && apt-get -q download "$image" "$headers" "$common" linux-kbuild-6.1 linux-compiler-gcc-12-x86 \
        linux-source-6.1)
    rm -rf unpacking
    for package in packages/*.deb; do dpkg-deb --extract "$package" unpacking; done
    rm -rf packages
    mv unpacking unpacked
fi
[ "${2:-}" != fetch ] || exit 0
release=$(ls unpacked/lib/modules | head -1)
modules=$PWD/unpacked/lib/modules/$release
cp "unpacked/boot/vmlinuz-$release" vmlinuz

if [ ! -e siw/siw.ko ]; then
    # The headers name the folders of their packages on an installed system.
    kernel=$PWD/unpacked/usr/src/linux-headers-$release
    grep -q "$PWD/unpacked" "$kernel/Makefile" || sed -i "s#/usr/src/#$PWD/unpacked/usr/src/#g" "$kernel/Makefile"
    rm -rf siw linux-source-6.1
    tar --extract --file unpacked/usr/src/linux-source-6.1.tar.xz linux-source-6.1/drivers/infiniband/sw/siw
    mv linux-source-6.1/drivers/infiniband/sw/siw siw
    rm -rf linux-source-6.1
    sed -i 's/obj-$(CONFIG_RDMA_SIW)/obj-m/' siw/Makefile
    # BTF needs an image with debugging information, which no package of these has.
    make -s -j2 -C "$kernel" M="$PWD/siw" CONFIG_DEBUG_INFO_BTF_MODULES= modules
fi

root=$PWD/root
rm -rf "$root"
mkdir -p "$root"/{bin,dev,proc,sys,tmp,etc/libibverbs.d,usr/bin,"lib/modules/$release/extra"}
busybox=$(command -v busybox)
cp "$busybox" "$root/bin/busybox"
for name in $("$busybox" --list); do
    [ "$name" = busybox ] || [ "$name" = ip ] || ln -s busybox "$root/bin/$name"
done
for path in drivers/infiniband/core drivers/net/dummy.ko drivers/net/ethernet/intel/e1000 net/ipv6/ip6_udp_tunnel.ko \
    net/ipv4/udp_tunnel.ko arch/x86/crypto/crc32c-intel.ko crypto/crc32c_generic.ko lib/libcrc32c.ko \
    fs/configfs/configfs.ko; do
    # Some of these are a part of the image in some builds.
    [ -e "$modules/kernel/$path" ] || continue
    mkdir -p "$root/lib/modules/$release/kernel/$(dirname $path)"
    cp -r "$modules/kernel/$path" "$root/lib/modules/$release/kernel/$(dirname $path)/"
done
cp siw/siw.ko "$root/lib/modules/$release/extra/"
cp "$modules"/modules.builtin* "$modules/modules.order" "$root/lib/modules/$release/"
"$busybox" depmod -b "$root" "$release"

libraries=/usr/lib/$(gcc -print-multiarch)
provider=$(ls "$libraries"/libibverbs/libsiw-rdmav*.so)
programs=()
for name in ip rdma ibv_devinfo rping rdma_client rdma_server ucmatose ib_send_lat ib_send_bw ib_write_lat \
    ib_write_bw ib_read_lat ib_read_bw; do
    programs+=("$(command -v $name || echo /sbin/$name)")
done
cp -L "${programs[@]}" "$root/usr/bin/"
mkdir -p "$root$libraries/libibverbs"
cp -L "$provider" "$root$libraries/libibverbs/"
cp /etc/libibverbs.d/siw.driver "$root/etc/libibverbs.d/"
ldd "${programs[@]}" "$provider" | grep -o '/[^ ]*\.so[^ ]*' | grep -v ':$' | sort -u | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
# pthread_exit(3) loads it.
mkdir -p "$root/lib/${libraries##*/}"
cp -L "/lib/${libraries##*/}/libgcc_s.so.1" "$root/lib/${libraries##*/}/"
echo 'root:x:0:0::/root:/bin/sh' > "$root/etc/passwd"
echo '127.0.0.1 localhost' > "$root/etc/hosts"
cp "$here/guest.sh" "$root/init"
chmod +x "$root/init"
(cd "$root" && find . | cpio --create --format newc --quiet | gzip -1) > initrd.new
mv initrd.new initrd.gz
rm -rf "$root"
