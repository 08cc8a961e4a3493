#!/usr/bin/env bash
# Installs by name what Debian 12 lacks to build and test deltafold, and checks the Rust toolchain. Says what it does;
# does nothing, in well under a second, when nothing is missing. The reason for each library stands in cmake/dependencies.cmake.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  clang-19 lld-19 llvm-19 libclang-rt-19-dev clang-format-19 clang-tidy-19 g++ cmake ninja-build ccache pkg-config git
  libhwy-dev libboost1.81-dev nlohmann-json3-dev libre2-dev libcli11-dev libspdlog-dev libfmt-dev prometheus-cpp-dev
  libxxhash-dev libyaml-cpp-dev libopenblas-serial-dev libgtest-dev libbenchmark-dev
  python3 python3-venv ca-certificates
)

fail() {
  printf 'setup: %s\n' "$@" >&2
  exit 1
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "not root and no sudo here. As root, run:" "  $*"
  fi
}

install_packages() {
  echo "setup: installing $*"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# One call for all: dpkg-query prints the installed ones and complains about the others.
installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
missing=()
for package in "${packages[@]}"; do
  grep -qx "$package installed" <<<"$installed" || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || fail "this is not a Debian system; install the equivalents of: ${missing[*]}"
  install_packages "${missing[@]}"
fi

# rust/ links the tokenizer library; its Cargo.toml states the oldest compiler that builds all crates.
export PATH="$PATH:$HOME/.cargo/bin"
[ -f rust/Cargo.toml ] || exit 0
wanted=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' rust/Cargo.toml)
if ! command -v cargo >/dev/null; then
  # Debian 12 keeps a current toolchain, under these names, for its browsers.
  install_packages cargo-web rustc-web
fi
have=$(rustc --version | awk '{print $2}')
if [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -1)" != "$wanted" ]; then
  fail "rustc $have is too old, $wanted or newer is needed. One of:" \
    "  rustup update stable                                        (if rustup manages it)" \
    "  apt-get remove rustc cargo && apt-get install cargo-web rustc-web   (Debian 12)"
fi
