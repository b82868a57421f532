# Sourced by demo.sh and test.sh: installs the Debian or Ubuntu packages that are missing.
packages="g++ cmake ninja-build pkg-config libeigen3-dev nlohmann-json3-dev libcli11-dev
  libgtest-dev librapidcheck-dev libbenchmark-dev libpcre2-dev libicu-dev libssl-dev libtbb-dev
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libhiredis-dev
  libboost-dev"

install_packages() {
  missing=""
  for package in $packages; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0
  echo "installing:$missing"
  sudo=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "missing packages and no sudo: run as root: apt-get install$missing" >&2; exit 1; }
    sudo=sudo
  fi
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# Configures and builds a preset: build PRESET [TARGET...].
build() {
  preset=$1; shift
  # Release builds use nvcc where it is found, also outside PATH.
  if ! command -v nvcc >/dev/null 2>&1 && [ -x /usr/local/cuda/bin/nvcc ]; then
    PATH=/usr/local/cuda/bin:$PATH
  fi
  cmake --preset "$preset" | grep "hypic:" || { cmake --preset "$preset"; return 1; }
  if [ $# -gt 0 ]; then cmake --build --preset "$preset" --target "$@"; else cmake --build --preset "$preset"; fi
}
