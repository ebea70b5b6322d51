"""The driver's packages and what they need, and what apt would do about another version."""

from __future__ import annotations

import base64
import shlex

from tasks.facts.sections import PRELUDE, Sections
from tasks.plan.driver.steps import PREFERENCES
from tasks.plan.service.repository import DRIVER

_SCRIPT = r"""
drivers() { dpkg-query -W -f '${db:Status-Abbrev}\t${binary:Package}\t${Version}\n' |
  awk -F'\t' '$2 ~ /nvidia|cuda|^libnv|^linux-(modules|objects)-nvidia/'; }
installed() { _at=0; for p in "$@"; do for f in "/var/lib/dpkg/info/$p.list" "/var/lib/dpkg/info/$p:amd64.list"; do
  [ -e "$f" ] || continue
  _t=$(stat -c %Y "$f"); [ "$_t" -le "$_at" ] || _at=$_t; done; done; echo "$_at"; }
booted() { _pid1=$(sed 's/.*) //' /proc/1/stat | cut -d' ' -f20)
  awk -v now="$(date +%s)" -v hz="$(getconf CLK_TCK)" -v pid1="$_pid1" \
    '{printf "%d\n", now - $1 + pid1 / hz}' /proc/uptime; }
runfile() { _u=/usr/bin/nvidia-uninstall
  if [ -e "$_u" ] && ! dpkg -S "$_u" >/dev/null 2>&1; then echo "$_u"; fi; }
secureboot() { _v=/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
  if [ -e "$_v" ]; then od -An -tu1 -j4 -N1 "$_v" | tr -d ' '; fi; }
enrolled() { for k in /var/lib/dkms/mok.pub /var/lib/shim-signed/mok/MOK.der; do
  if [ -e "$k" ]; then limit 20 mokutil --test-key "$k"; fi; done; true; }
kernels() { { uname -r; ls -v /boot/vmlinuz-* 2>/dev/null | tail -n 1 | sed 's|^/boot/vmlinuz-||'; } | sort -u |
  while read -r k; do if [ -e "/lib/modules/$k/build" ]; then echo "$k headers"; else echo "$k"; fi; done; }
serving() { systemctl list-units --plain --no-legend --state=active,activating,deactivating,reloading \
  'sglang-pd-*.service' | awk '{print $1}'; }
section drivers drivers
section booted booted
section runfile runfile
section secureboot secureboot
section enrolled enrolled
section kernels kernels
section serving serving
"""

# The lists are fetched into a folder of our own, so that a dry run can tell what a run would do.
_OFFER = r"""
t=$(mktemp -d) || exit 1
trap 'rm -rf "$t"' EXIT
chmod 755 "$t" && mkdir -p "$t/sources" "$t/preferences" "$t/lists/partial" "$t/cache/archives/partial"
cp -a /etc/apt/sources.list.d/. "$t/sources" 2>/dev/null
cp -a /etc/apt/preferences.d/. "$t/preferences" 2>/dev/null
unhold() { awk -v names=" $* " '/^Package: / {p = $2}
  /^Status: hold / && index(names, " " p " ") {sub(/hold/, "install")} {print}' /var/lib/dpkg/status >"$t/status"; }
our() { _tool=$1; shift; limit 280 "$_tool" -o Dir::Etc::SourceParts="$t/sources" -o Dir::State::Lists="$t/lists" \
  -o Dir::Etc::PreferencesParts="$t/preferences" -o Dir::Cache="$t/cache" -o Dir::State::status="$t/status" \
  -o Acquire::Languages=none -o APT::Update::Error-Mode=any -o Debug::NoLocking=1 "$@"; }
pick() { our apt-cache madison "$1" | awk -F'|' -v wanted="$version" '/Packages$/ {
  gsub(/ /, "", $2); v = $2; sub(/^[0-9]+:/, "", v); sub(/-[^-]*$/, "", v); if (v == wanted) {print $2; exit}}'; }
headers() { for k in "$@"; do our apt-cache madison "linux-headers-$k" | grep -q 'Packages$' && echo "$k"; done; true; }
install() { _list=; for p in "$@"; do _v=$(pick "$p"); [ -n "$_v" ] || return 0; _list="$_list $p=$_v"; done
  our apt-get -s -q install --no-install-recommends --allow-downgrades $_list; }
"""


class Driver(Sections):
    """Sections for tasks.plan.driver.steps.read."""

    def command(self, packages: list[str]) -> str:
        return f"{PRELUDE}{_SCRIPT}section installed installed {shlex.join(packages)}\n"


class Offer(Sections):
    """Sections for tasks.plan.driver.steps.read_offer: update, 'offers PACKAGE', headers, install."""

    def command(
        self,
        packages: list[str],
        version: str,
        kernels: list[str],
        held: list[str],
        source: str,
        keyring: bytes,
        preferences: str,
    ) -> str:
        """held: packages whose hold does not count. source: a text whose Signed-By is 'KEYRING', "" where the host's
        apt knows the repository."""
        own = DRIVER.path.rpartition("/")[2]
        pin = f'>"$t/preferences/{PREFERENCES.rpartition("/")[2]}"'
        files = [f'rm -f "$t/sources/{own}"', f"printf %s {shlex.quote(preferences)} {pin}"]
        if source:
            files.append(f'echo {base64.b64encode(keyring).decode()} | base64 -d >"$t/keyring"')
            files.append(f'printf %s {shlex.quote(source)} | sed "s|KEYRING|$t/keyring|" >"$t/sources/{own}"')
        asked = [
            f"section {shlex.quote(f'offers {name}')} our apt-cache madison {shlex.quote(name)}" for name in packages
        ]
        return "\n".join(
            [
                PRELUDE,
                _OFFER,
                f"version={shlex.quote(version)}",
                f"unhold {shlex.join(held)}",
                *files,
                "section update our apt-get -q update",
                *asked,
                f"section headers headers {shlex.join(kernels)}",
                f"section install install {shlex.join(packages)}",
            ]
        )
