#!/usr/bin/env bash
# Runs the tests of long-term memory at an object store against Ceph's, on loopback: one monitor, one store in memory, one
# gateway. Needs Debian's packages: apt-get install radosgw ceph-mon ceph-osd ceph-common
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
data=$(mktemp -d)
mon_port=${CEPH_MON_PORT:-46789}
s3_port=${CEPH_S3_PORT:-47480}
trap 'for file in "$data"/run/*.pid; do kill "$(cat "$file")" || true; done; sleep 1; rm -rf "$data"' EXIT
mkdir -p "$data"/{mon,osd,rgw,run}
cat > "$data/ceph.conf" <<CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon host = v1:127.0.0.1:$mon_port
mon initial members = a
public network = 127.0.0.0/8
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default pg num = 8
osd objectstore = memstore
memstore device bytes = 2147483648
mon allow pool size one = true
mon data avail crit = 1
ms bind msgr2 = false
run dir = $data/run
admin socket = $data/run/\$name.asok
pid file = $data/run/\$name.pid
log file = $data/\$name.log
mon data = $data/mon
osd data = $data/osd
[client.rgw.a]
rgw frontends = beast endpoint=127.0.0.1:$s3_port
rgw data = $data/rgw
CONF
ceph() { timeout 30 /usr/bin/ceph -c "$data/ceph.conf" "$@"; }
fsid=$(sed -n 's/^fsid = //p' "$data/ceph.conf")
monmaptool --create --addv a "[v1:127.0.0.1:$mon_port]" --fsid "$fsid" "$data/monmap" > /dev/null
ceph-mon -c "$data/ceph.conf" --mkfs -i a --monmap "$data/monmap"
ceph-mon -c "$data/ceph.conf" -i a
osd=$(cat /proc/sys/kernel/random/uuid)
ceph osd new "$osd" 0 > /dev/null
ceph-osd -c "$data/ceph.conf" --mkfs -i 0 --osd-uuid "$osd" 2> /dev/null
ceph-osd -c "$data/ceph.conf" -i 0 2> /dev/null
radosgw -c "$data/ceph.conf" -n client.rgw.a
timeout 60 radosgw-admin -c "$data/ceph.conf" user create --uid t --display-name t --access-key test --secret-key test > /dev/null
cd "$here"
REMORA_TEST_S3=http://127.0.0.1:$s3_port .venv/bin/python -m pytest -q "${@:-tests/integration/test_object_store.py}"
