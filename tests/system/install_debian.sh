#!/bin/sh
# Installs Debian packages that system tests need, quietly and only those that are missing:
#   install_debian.sh slurm-wlm munge iproute2
# Exits with 3, and says what to do by hand, where it cannot (no root, no Debian).
set -eu

missing=""
for package in "$@"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  test "$state" = installed || missing="$missing $package"
done
test -n "$missing" || exit 0

if ! command -v apt-get >/dev/null; then
  echo "these tests need$missing: install them with the package manager of this system" >&2
  exit 3
fi
if test "$(id -u)" -ne 0; then
  echo "these tests need$missing: sudo apt-get install$missing" >&2
  exit 3
fi

# One at a time, and no service is started: tests start their own, with their own files.
exec 9>"${TMPDIR:-/tmp}/srl-install-debian.lock"
flock 9
policy=/usr/sbin/policy-rc.d
if ! test -e "$policy"; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  trap 'rm -f "$policy"' EXIT
fi

export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
install() {
  # shellcheck disable=SC2086  # a list of names
  apt-get install --yes --quiet --no-install-recommends $missing >"$log" 2>&1
}
# A machine that has never looked, or not for long, has no or an old list of packages.
install || { apt-get update --quiet >"$log" 2>&1 && install; } || {
  tail -n 20 "$log" >&2
  rm -f "$log"
  exit 1
}
rm -f "$log"
