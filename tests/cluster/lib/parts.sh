# shellcheck shell=bash disable=SC2164  # common.sh sets errexit: a failing cd ends the recipe
# The parts of the cluster and the recipes that build them.
#
# A part is a folder in the cache, named after a hash of its sources and of its recipe, which is the text of the function
# below. A change of either makes a new folder. An existing folder is complete, because recipes work in a temporary one.
# A recipe runs with OUT set to that folder and CLUSTER_HOME as its working directory.

# part -> the files that it is made from, below tests/cluster
declare -A PART_SOURCES=(
  [hyperkube]=tools/hyperkube
  [node-packages]=""
  [pause-image]="images/pause.c images/mkimage.py"
  [base-image]=images/mkimage.py
  [pulumi-cli]=tools/pulumi-cli
  [pulumi-language-python]=tools/pulumi-language-python
  [pulumi-resource-kubernetes]=tools/pulumi-resource-kubernetes
  [kwok]=tools/kwok
  [metrics-server]=tools/metrics-server
  [kueue]=tools/kueue
  [lws]=tools/lws
)
# In build order: parts that the cluster itself needs come first.
PARTS=(hyperkube node-packages pause-image base-image pulumi-cli pulumi-language-python pulumi-resource-kubernetes kwok
  metrics-server kueue lws)
# Parts that only one test needs are built on request.
ON_DEMAND=(metrics-server kueue lws)

# part -> the time to build it on two cores with empty caches of Go
declare -A PART_COLD=(
  [hyperkube]="11 min"
  [node-packages]="6 s"
  [pause-image]="5 s"
  [base-image]="1 min"
  [pulumi-cli]="7 min"
  [pulumi-language-python]="1 min"
  [pulumi-resource-kubernetes]="11 min"
  [kwok]="3 min"
  [metrics-server]="4 min"
  [kueue]="3 min"
  [lws]="11 min"
)

BASE_IMAGE=localhost/aiperf-base:bookworm
PAUSE_IMAGE=localhost/pause:1

# Go with every check on: go.sum must name all that is used, nothing is fetched unverified.
checked_go() { # GO_ARGUMENT... in the module's folder
  env -u GONOSUMDB -u GONOSUMCHECK -u GOINSECURE -u GOPRIVATE -u GOSUMDB \
    GOFLAGS="-mod=readonly -buildvcs=false -trimpath" GOWORK=off CGO_ENABLED=0 nice go "$@"
}

module_version() { # MODULE: as go.mod has it, "v1.2.3"
  checked_go list -m -f '{{.Version}}' "$1"
}

make_hyperkube() {
  cd tools/hyperkube
  checked_go test ./internal/...
  local flags="-s -w" package version minor
  version=$(module_version k8s.io/kubernetes)
  minor=$(cut -d. -f2 <<<"$version")
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor"
    flags+=" -X $package.gitTreeState=clean -X $package.gitCommit=none -X $package.buildDate=1970-01-01T00:00:00Z"
  done
  checked_go build -ldflags "$flags" -o "$OUT/bin/hyperkube" .
  local name
  for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy coredns kubectl; do
    ln -s hyperkube "$OUT/bin/$name"
  done
}

# containerd and its helpers with the libraries that a minimal Debian lacks, unpacked and never installed.
make_node-packages() {
  apt_update
  mkdir "$OUT/debs"
  (cd "$OUT/debs" && apt-get download -qq containerd runc containernetworking-plugins nftables libnftables1 \
    libnftnl11 libjansson4 libedit2 libbsd0 libmd0 libgmp10 libmnl0 libxtables12 libseccomp2)
  local deb missing
  for deb in "$OUT"/debs/*.deb; do dpkg -x "$deb" "$OUT/root"; done
  rm -r "$OUT/debs" "$OUT/root/usr/share/doc"
  missing=$(LD_LIBRARY_PATH=$OUT/root/usr/lib/x86_64-linux-gnu ldd "$OUT"/root/usr/bin/{containerd,ctr} \
    "$OUT"/root/usr/sbin/{runc,nft} | awk '/not found/ {print $1}')
  [ -z "$missing" ] || { echo "missing shared libraries: $missing" >&2; return 1; }
}

make_pause-image() {
  need_command gcc gcc libc6-dev
  mkdir "$OUT/root"
  gcc -Os -static -s -Wall -Wextra -Werror -o "$OUT/root/pause" images/pause.c
  python3 images/mkimage.py "$OUT/image.tar" "$PAUSE_IMAGE" "$OUT/root" --entrypoint '["/pause"]' --user 65535:65535
  rm -r "$OUT/root"
}

# A small Debian with Python: what the project's image is built on where no registry can be reached.
make_base-image() {
  need_command mmdebstrap mmdebstrap
  mmdebstrap --mode=root --variant=essential --skip=cleanup/tmp \
    --include=apt,python3-minimal,libpython3-stdlib,python3-venv,python3-pip,ca-certificates,libstdc++6 \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' --dpkgopt='path-exclude=/usr/share/locale/*' \
    bookworm "$OUT/base.tar"
  python3 images/mkimage.py "$OUT/image.tar" "$BASE_IMAGE" "$OUT/base.tar"
  rm "$OUT/base.tar"
}

make_pulumi-cli() {
  cd tools/pulumi-cli
  local version
  version=$(module_version github.com/pulumi/pulumi/pkg/v3)
  checked_go build -tags osusergo,grpcnotrace -o "$OUT/bin/pulumi" \
    -ldflags "-s -w -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=$version" \
    github.com/pulumi/pulumi/pkg/v3/cmd/pulumi
}

make_pulumi-language-python() {
  cd tools/pulumi-language-python
  local package=github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python
  checked_go build -tags osusergo -ldflags "-s -w" -o "$OUT/bin/pulumi-language-python" $package
  # the host starts programs by this script, which lies beside it in the module
  install -m 755 "$(checked_go list -f '{{.Module.Dir}}' $package)/python/cmd/pulumi-language-python-exec" "$OUT/bin/"
}

make_pulumi-resource-kubernetes() {
  cd tools/pulumi-resource-kubernetes
  local version
  version=$(module_version github.com/pulumi/pulumi-kubernetes/sdk/v4)
  checked_go build -o "$OUT/bin/pulumi-resource-kubernetes" \
    -ldflags "-s -w -X github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version.Version=${version#v}" .
}

make_kwok() {
  cd tools/kwok
  local package=sigs.k8s.io/kwok/cmd/kwok stages file
  checked_go build -ldflags "-s -w" -o "$OUT/bin/kwok" $package
  # how fake nodes and pods live: they get ready at once, and go when they are deleted
  stages=$(checked_go list -f '{{.Module.Dir}}' $package)/kustomize/stage
  for file in node/fast/node-initialize node/heartbeat-with-lease/node-heartbeat-with-lease \
    pod/fast/pod-ready pod/fast/pod-complete pod/fast/pod-delete; do
    cat "$stages/$file.yaml"
    echo ---
  done >"$OUT/stages.yaml"
}

make_metrics-server() {
  cd tools/metrics-server
  checked_go build -ldflags "-s -w" -o "$OUT/bin/metrics-server" sigs.k8s.io/metrics-server/cmd/metrics-server
}

make_kueue() {
  cd tools/kueue
  local package=sigs.k8s.io/kueue/cmd/kueue
  checked_go build -ldflags "-s -w" -o "$OUT/bin/kueue" $package
  # its types, webhooks and what belongs to them, which lie beside it in the module
  cp -r --no-preserve=mode "$(checked_go list -f '{{.Module.Dir}}' $package)/config" "$OUT/config"
}

make_lws() {
  cd tools/lws
  local package=sigs.k8s.io/lws/cmd
  checked_go build -ldflags "-s -w" -o "$OUT/bin/lws" $package
  cp -r --no-preserve=mode "$(checked_go list -f '{{.Module.Dir}}' $package)/config" "$OUT/config"
}

# Where a part is, built or not.
part() { # PART
  echo "$CACHE/parts/$1-$(part_key "$1")"
}

part_key() { # PART
  {
    declare -f "make_$1" checked_go
    echo "$BASE_IMAGE $PAUSE_IMAGE"
    local source
    for source in ${PART_SOURCES[$1]}; do
      (cd "$CLUSTER_HOME" && find "$source" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum)
    done
  } | sha256sum | cut -c1-12
}

# One folder with a link to every binary, for PATH; named after the parts that it shows.
tools_bin() {
  local name keys=
  for name in "${PARTS[@]}"; do keys+=$(part_key "$name"); done
  echo "$CACHE/bin/$(printf %s "$keys" | sha256sum | cut -c1-12)"
}

require_parts() { # PART...
  local name
  for name in "$@"; do
    [ -d "$(part "$name")" ] ||
      fail "$name is not built: run tests/cluster/build $name (about ${PART_COLD[$name]} with empty caches)"
  done
}
